"""The gate of an export refuses real files that were damaged as a fault of the program would damage them.

Masks are the checkpoint's own predictions ("good"), or have nothing to do with them ("weak").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests.prediction.models import noise
from unet_ddp import Predictor
from unet_ddp.__main__ import main
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import RunError, UserError
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.onnx import export as module
from unet_ddp.extras.onnx.backend import METADATA
from unet_ddp.extras.onnx.export import Job
from unet_ddp.extras.onnx.export_data import Scored, find_scored
from unet_ddp.extras.onnx.whole_image import add_steps
from unet_ddp.extras.overlap.labels import OverlapLabels
from unet_ddp.network.architecture import Architecture

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("traced_once")]

KINDS: dict[str, tuple[Labels, float | None]] = {
    "classes": (Labels((0, 200), names=("road", "car")), 0.6),
    "overlap": (OverlapLabels((1, 2), names=("cell", "nucleus"), thresholds=(0.3, 0.6)), None),
    "objects": (replace(ObjectLabels.of(("cell",)), separation=(0.7, 0.3), smoothing=0.6), None),
}
FORMS: dict[str, list[str]] = {
    "plain": [],
    "openvino": ["--runtime", "openvino"],
    "float16": ["--precision", "float16"],
    "int8": ["--precision", "int8", "--calibration", "imgs", "--tolerance", "0.1"],
    "whole": ["--whole"],
    "qgis": ["--qgis"],
    "bioimageio": ["--bioimageio", "--license", "mit"],
}
NO_SUCH = {("overlap", "whole"), ("overlap", "qgis"), ("objects", "whole")}
"""Forms that refuse a kind of labels: tests/extras/onnx/test_gate_refuses.py."""
SIZES = (60, 90), (41, 67), (60, 90)


class Colours(nn.Module):
    """A network in which each channel, its mean and its deviation matter."""

    stride = 2

    def __init__(self, channels: int, num_classes: int, width: int = 8) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, width, 3, 1, 1)
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.mix(images).tanh())  # type: ignore[no-any-return]


NETWORK = f"{__name__}:Colours"


def write_checkpoint(path: Path, labels: Labels, threshold: float | None) -> None:
    torch.manual_seed(5)
    network = Colours(3, labels.num_classes)
    pixels = Preprocessing(3, (0.6, 0.4, 0.3), (0.3, 0.2, 0.1), 0.5, high=255.0)
    with torch.no_grad():
        network.head.weight.mul_(4)
        logits = network(pixels(torch.from_numpy(noise(64, 64))[None]))
        network.head.bias -= logits.flatten(2).median(2).values[0]
        network.head.bias[1] += labels.kind == "numbered objects"  # or few pixels are of one
    content = {
        "model": network.state_dict(),
        "architecture": Architecture(NETWORK, 3, labels.num_classes, None, 8).to_dict(),
        "labels": labels.to_dict(),
        "preprocessing": pixels.to_dict(),
        "threshold": threshold,
        "config": {},
    }
    checkpoint.save(path, content)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each kind, images, and two kinds of masks."""
    found = {}
    for kind, (labels, threshold) in KINDS.items():
        place = found[kind] = tmp_path_factory.mktemp(kind)
        write_checkpoint(place / "a.pt", labels, threshold)
        predictor = Predictor.from_checkpoint(place / "a.pt", network=NETWORK, device="cpu")
        for name in ("imgs", "good", "weak"):
            (place / name).mkdir()
        for k, (height, width) in enumerate(SIZES):
            blocks = noise(height // 6 + 1, width // 6 + 1, k).repeat(6, 0).repeat(6, 1)
            Image.fromarray(blocks[:height, :width]).save(place / f"imgs/{k}.png")
            mask = predictor(place / f"imgs/{k}.png").mask
            values = labels.to_values(mask) if kind == "classes" else mask
            Image.fromarray(values).save(place / f"good/{k}.png")
            rows = np.roll(values, height // 2, 0)[:, ::-1]
            Image.fromarray(np.ascontiguousarray(rows)).save(place / f"weak/{k}.png")
    return found


def export(place: Path, masks: str, form: str) -> int:
    words = [str(place / "imgs") if word == "imgs" else word for word in FORMS[form]]
    if "--runtime" not in words:
        words += ["--runtime", "onnxruntime"]
    if form == "bioimageio" and place.name.startswith("objects"):
        words += ["--tolerance", "0.6"]  # it is for other programs' objects, in images of full size
    path = place / ("a.zip" if form == "bioimageio" else "a.onnx")
    path.unlink(missing_ok=True)
    scored = ["--images", str(place / "imgs"), "--masks", str(place / masks)]
    network = ["--network", NETWORK]
    return main(["export", str(place / "a.pt"), str(path), *scored, *network, *words])


# -- Damage: of a graph with its end `taken` and `given`, or of its metadata --------------------------


def edit_end(graph: Any, *, is_input: bool, make: Callable[[Any, str, str], list[Any]]) -> None:
    """Put the nodes that `make(helper, source, target)` returns behind the input or before the first output."""
    from onnx import helper

    name = (graph.graph.input if is_input else graph.graph.output)[0].name
    for node in graph.graph.node:
        names = node.input if is_input else node.output
        for k, each in enumerate(names):
            if each == name:
                names[k] = "inner"
        if not is_input:  # others that read it
            for k, each in enumerate(node.input):
                if each == name:
                    node.input[k] = "inner"
    source, target = (name, "inner") if is_input else ("inner", name)
    nodes = make(helper, source, target)
    place = 0 if is_input else len(graph.graph.node)
    for node in reversed(nodes):
        graph.graph.node.insert(place, node)


def gather(axis: int, order: list[int]) -> Callable[[Any, str, str], list[Any]]:
    def make(helper: Any, source: str, target: str) -> list[Any]:
        value = helper.make_tensor("order", 7, [len(order)], order)
        constant = helper.make_node("Constant", [], ["order"], value=value)
        return [constant, helper.make_node("Gather", [source, "order"], [target], axis=axis)]

    return make


def roll(axis: int) -> Callable[[Any, str, str], list[Any]]:
    def make(helper: Any, source: str, target: str) -> list[Any]:
        nodes = []
        for name, value in (("zero", 0), ("five", 5), ("end", 2**31), ("axis", axis)):
            tensor = helper.make_tensor(name, 7, [1], [value])
            nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        nodes.append(helper.make_node("Slice", [source, "five", "end", "axis"], ["right"]))
        nodes.append(helper.make_node("Slice", [source, "zero", "five", "axis"], ["left"]))
        return [*nodes, helper.make_node("Concat", ["right", "left"], [target], axis=axis)]

    return make


def set_constants(graph: Any, ending: str, change: Callable[[Any], Any]) -> None:
    from onnx import numpy_helper

    found = [each for each in graph.graph.initializer if each.name.endswith(ending)]
    assert found, ending
    for each in found:
        array = numpy_helper.to_array(each)
        new = np.ascontiguousarray(change(array)).astype(array.dtype).reshape(array.shape)
        each.CopyFrom(numpy_helper.from_array(new, each.name))


def swap_classes(graph: Any) -> None:
    for name in ("head.weight", "head.bias"):
        set_constants(graph, name, lambda rows: rows[::-1])


def set_fact(graph: Any, key: str, change: Callable[[Any], Any]) -> None:
    entry = next(each for each in graph.metadata_props if each.key == key)
    entry.value = json.dumps(change(json.loads(entry.value)))


def lose_fact(**changed: Any) -> Callable[[Any], None]:
    """Metadata of our own in which fields of the labels, the pixels or the whole are other ones."""

    def change(facts: Any) -> Any:
        for name, value in changed.items():
            for part in (facts, facts["labels"], facts["preprocessing"]):
                if name in part:
                    part[name] = value
        return facts

    return lambda graph: set_fact(graph, METADATA, change)


def mutants(
    kind: str, form: str, rebuild: Callable[..., Callable[[Any], None]]
) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Yield the damages that a form of a kind can have; `rebuild` makes its steps of another checkpoint."""
    count, planes = KINDS[kind][0].num_classes, form in ("qgis", "bioimageio")
    if form == "whole":
        yield "output swapped", swap_classes
    elif form != "qgis" or count > 2:
        order = [*range(count)][::-1]
        yield "output swapped", lambda g: edit_end(g, is_input=False, make=gather(1, order))
    axis = 2 if form == "whole" else 3
    yield "output moved", lambda g: edit_end(g, is_input=False, make=roll(axis))
    channels = 1 if planes else 3
    yield "channel order", lambda g: edit_end(g, is_input=True, make=gather(channels, [2, 1, 0]))
    yield "mean left out", lambda g: set_constants(g, "mean", np.zeros_like)
    yield "deviation left out", lambda g: set_constants(g, "factor", lambda f: 0 * f + 1 / 255)
    yield "deviations in another order", lambda g: set_constants(g, "factor", lambda f: f[:, ::-1])
    yield "range of 16 bit", lambda g: set_constants(g, "factor", lambda f: f * 255 / 65535)
    if form in ("whole", "bioimageio"):
        yield "scale left out", rebuild(scale=1.0)
    if form == "whole":
        yield "threshold left out", rebuild(threshold=None)
    if form == "qgis" and count == 2:
        yield "threshold", lambda g: set_fact(g, "seg_thresh", lambda _: 0.5)
    if form == "qgis":
        yield (
            "standardised twice",
            lambda g: set_fact(g, "standardization_std", lambda _: [0.2] * 3),
        )
        yield "mean twice", lambda g: set_fact(g, "standardization_mean", lambda _: [0.4] * 3)
    if form in ("plain", "openvino", "float16", "int8"):
        yield "scale", lose_fact(scale=1.0)
        yield "mean as read", lose_fact(mean=[0.5] * 3)
        yield "range as read", lose_fact(high=1.0)
        yield "type as read", lose_fact(dtype="uint16")
        yield "stride as read", lose_fact(stride=1)
        if kind == "classes":
            yield "threshold", lose_fact(threshold=None)
            yield "values", lose_fact(values=[0, 1])
        if kind == "overlap":
            yield "thresholds", lose_fact(thresholds=[])
        if kind == "objects":
            yield "separation", lose_fact(separation=[0.5, 0.5])
            yield "smoothing", lose_fact(smoothing=0.0)


def is_refused(judge: Callable[[], object]) -> bool:
    """Return whether the gate refuses a file, in one line."""
    try:
        judge()
    except (RunError, UserError) as error:
        assert str(error).count("\n") == 0
        return True
    return False


KEPT = ("classes", "whole"), ("overlap", "bioimageio"), ("objects", "float16")
CASES = [
    pytest.param(kind, form, marks=[pytest.mark.release] * ((kind, form) not in KEPT))
    for kind in KINDS
    for form in FORMS
    if (kind, form) not in NO_SUCH
]


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_each_damage_of_a_file_is_refused(
    places: dict[str, Path], kind: str, form: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The file is written once, by the command; then the same gate reads it with each damage."""
    onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    place, write, pass_all = places[kind], module.write_graph, module.write_passing
    missed, refused = [], []

    def pass_and_damage(job: Job, scored: Scored, graph: Any, temporary: Path) -> Any:
        written = pass_all(job, scored, graph, temporary)
        saved = onnx.load(temporary)
        # Damage needs no new graph: in int8, it has the first that passed.
        monkeypatch.setattr(module, "quantised", lambda *_: [(saved, [])])
        monkeypatch.setattr(module, "add_steps", lambda *_: saved)

        def rebuild(scale: float = 0.5, **changed: Any) -> Callable[[Any], None]:
            pixels = replace(job.model.preprocessing, scale=scale)
            other = replace(job.model, preprocessing=pixels, **changed)
            made = add_steps(graph, other, f"--{form}")
            return lambda file: file.graph.CopyFrom(made.graph)

        folders = str(place / "imgs"), str(place / "weak")
        weak = find_scored(*folders, job.saved, job.source, job.model)
        for name, change in mutants(kind, form, rebuild):

            def damage(graph: Any, facts: Any, path: Path, change: Any = change) -> None:
                write(graph, facts, path)
                other = onnx.load(path)
                change(other)
                onnx.save(other, path)

            monkeypatch.setattr(module, "write_graph", damage)
            for masks, data in (("good", scored), ("weak", weak)):
                if masks == "good" or form != "int8":  # which may differ, if it is no worse
                    found = is_refused(partial(pass_all, job, data, graph, temporary))
                    (refused if found else missed).append(f"{name}, {masks} masks")
        monkeypatch.setattr(module, "write_graph", write)
        return written

    monkeypatch.setattr(module, "write_passing", pass_and_damage)
    assert export(place, "good", form) == 0, capsys.readouterr().err
    assert not missed and len(refused) >= 6
