"""The gate of an export refuses networks that predict something else; a form carries a step or says no."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.prediction.models import load
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import RunError, UserError
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.onnx.gate import check_facts, judge, with_network
from unet_ddp.extras.onnx.refusal import Refusal
from unet_ddp.extras.onnx.whole_image import add_image_steps, add_qgis_steps
from unet_ddp.extras.overlap.labels import OverlapLabels
from unet_ddp.extras.sharing.bioimageio import prepare

GREYS = {"ground": 0, "cell": 255, "border": 128}


class Grey(torch.nn.Module):
    """Logits by how near a grey pixel is to each class's, plus a bias for each."""

    def __init__(self, greys: list[int], bias: list[float], shift: int = 0) -> None:
        super().__init__()
        self.register_buffer("greys", torch.tensor(greys).view(1, -1, 1, 1) / 255)
        self.bias = torch.nn.Parameter(torch.tensor(bias, dtype=torch.float32).view(1, -1, 1, 1))
        self.shift = shift

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        grey = (images[:, :1] * 0.229 + 0.485).roll(
            self.shift, 3
        )  # of red, normalised as ImageNet's
        return self.bias - 40 * (grey - self.greys).abs()


def cells(folder: Path) -> tuple[Any, SegmentationDataset]:
    """Pairs of touching cells with a border between them, numbered in the masks."""
    for name in ("imgs", "masks"):
        (folder / name).mkdir()
    for k in range(3):
        image, numbers = np.zeros((40, 64), np.uint8), np.zeros((40, 64), np.uint16)
        for n in range(6):
            top, left = 4 + k, 4 + 9 * n
            numbers[top : top + 20, left : left + 9] = n + 1
            image[top : top + 20, left : left + 9] = 255
            image[top : top + 20, left - 1 : left + 1] = 128 if n else 255
        Image.fromarray(image).convert("RGB").save(folder / "imgs" / f"{k}.png")
        Image.fromarray(numbers).save(folder / "masks" / f"{k}.png")
    return find_pairs(folder / "imgs", folder / "masks"), GREYS


def verdict_of(labels: Labels, pairs: Any, good: Grey, bad: Grey) -> Any:
    networks = [load(each, labels) for each in (good, bad)]
    pixels = networks[0].preprocessing
    data = SegmentationDataset(pairs, labels, pixels.format, scale=1.0, resize_masks=False)
    return judge({"": with_network(networks[1])}, with_network(networks[0]), data)[""]


@pytest.mark.parametrize(
    "bias", [[0, 0, -100], [100, 0, 0], [0, -100, 0]], ids=["merged", "none", "borders"]
)
def test_a_network_that_merges_or_loses_objects_is_refused(
    tmp_path: Path, bias: list[float]
) -> None:
    pairs, greys = cells(tmp_path)
    labels = ObjectLabels.of(("cell",))
    good = Grey([*greys.values()], [0.0, 0.0, 0.0])
    same = verdict_of(labels, pairs, good, good)
    assert same.precision == (1.0, 1.0) and same.fall == 0
    assert min(same.dice) > 0.98  # masks of objects have no border class
    assert same.to_dict()["dice"] == same.to_dict()["checkpoint_dice"] == same.dice[0]
    assert "without the border class" in same.summarise()
    found = verdict_of(labels, pairs, good, Grey([*greys.values()], bias))
    assert found.fall > 0.5
    assert f"AP {found.precision[1]:.4f} (-" in found.summarise()
    if bias == [0, 0, -100]:
        assert (
            "AP of objects falls from 1.0000 to " in found.explain()
            and "18 objects to 3" in found.explain()
        )


@pytest.mark.parametrize("kind", ["classes", "overlap"])
@pytest.mark.parametrize(("bias", "shift"), [([0, -100], 0), ([-100, 0], 0), ([0, 0], 5)])
def test_a_network_of_other_classes_or_places_is_refused(
    tmp_path: Path, kind: str, bias: list[float], shift: int
) -> None:
    pairs, _ = cells(tmp_path)
    for pair in pairs:
        numbers = np.asarray(Image.open(pair.mask))
        values = np.where(numbers > 0, 1, 0) if kind == "classes" else np.where(numbers > 0, 2, 1)
        Image.fromarray(values.astype(np.uint8)).save(pair.mask)
    labels = Labels((0, 1)) if kind == "classes" else OverlapLabels((1, 2))
    good = Grey([0, 255], [20.0, 20.0] if kind == "overlap" else [0.0, 0.0])
    start = [20.0 * (kind == "overlap") + each for each in bias]
    same, found = (
        verdict_of(labels, pairs, good, each) for each in (good, Grey([0, 255], start, shift))
    )
    assert same.fall == 0 and found.fall > 0.05


OTHER = {"nodata": 0.0, "ground_resolution": 2.0}
"""Values of fields that are steps before the network, beside the usual normalisation."""


def test_each_step_before_the_network_is_carried_out_or_refused_by_each_form() -> None:
    """A new field of Preprocessing must be added here, and to the forms."""
    known = {"channels", "mean", "std", "scale", "dtype", "low", "high", *OTHER}
    assert {field.name for field in fields(Preprocessing)} == known
    for name, value in OTHER.items():
        model = load(torch.nn.Identity(), Labels((0, 1)))
        model = replace(model, preprocessing=replace(model.preprocessing, **{name: value}))
        forms: dict[str, Any] = {
            "--whole": lambda model=model: add_image_steps(None, model),
            "--qgis": lambda model=model: add_qgis_steps(None, model),
            "--bioimageio": lambda model=model: prepare(model, "MIT", (), None, None),
        }
        for flag, make in forms.items():
            if (flag, name) == ("--qgis", "ground_resolution"):
                continue  # in its metadata
            with pytest.raises(UserError, match=f"^{flag}: .*(without data|2 m on the ground)"):
                make()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold", None),
        ("stride", 1),
        ("labels", Labels((0, 1))),
        ("preprocessing", Preprocessing.for_images(3, scale=0.5)),
    ],
)
def test_a_file_that_describes_another_network_is_refused(name: str, value: Any) -> None:
    model = load(torch.nn.Identity(), Labels((0, 200)), threshold=0.3)
    own = {**vars(model), "stride": model.backend.stride}
    names = ("labels", "preprocessing", "threshold", "stride")
    facts = SimpleNamespace(**{each: own[each] for each in names})
    backend: Any = SimpleNamespace(path=Path("a.onnx"), facts=facts)
    check_facts(backend, model)
    setattr(facts, name, value)
    with pytest.raises(RunError, match=rf"^a\.onnx: not kept: its {name} would be read as .*"):
        check_facts(backend, model)


def test_a_file_s_errors_name_it_and_not_its_temporary_file() -> None:
    refusal = Refusal(Path("a.onnx"), Path("best.pt"), "my:Net", "float16")
    temporary = Path(".a.tmp")
    kinds: list[tuple[Exception, str]] = [
        (UserError("x.png: not found"), "x.png: not found"),
        (RunError(".a.tmp: not kept"), "a.onnx: not kept"),
        (
            UserError(".a.tmp: can't run"),
            "a.onnx: can't run; as an ONNX file in float16, my:Net has",
        ),
    ]
    for error, message in kinds:
        with pytest.raises(type(error)) as found, refusal.naming(temporary):
            raise error
        assert str(found.value).startswith(message)
    with pytest.raises(UserError, match="try --precision float32") as found, refusal.naming(temporary):  # fmt: skip
        raise UserError(".a.tmp: corrupt") from RuntimeError("Load of .a.tmp failed: no kernel")
    assert "can't be opened again (Load of it failed: no kernel)" in str(found.value)
