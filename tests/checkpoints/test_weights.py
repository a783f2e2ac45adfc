"""Networks in checkpoints of any program, and the checkpoint to predict with."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.object_store import MemoryBucket
from unet_ddp.checkpoints.foreign import infer_unet, strip_prefixes, take_from_module
from unet_ddp.checkpoints.weights import (
    build_loaded,
    check_weights,
    find_model,
    list_runs,
    read_model,
)
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url, put
from unet_ddp.network.architecture import Architecture
from unet_ddp.network.unet import UNet
from unet_ddp.prediction.backends import LoadedModel, TorchBackend, open_model
from unet_ddp.prediction.predictor import Predictor

FORMS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "raw": dict,
    "module.": lambda s: {f"module.{k}": v for k, v in s.items()},
    "_orig_mod.": lambda s: {f"_orig_mod.{k}": v for k, v in s.items()},
    "module._orig_mod.": lambda s: {f"module._orig_mod.{k}": v for k, v in s.items()},
    "_orig_mod.module.": lambda s: {f"_orig_mod.module.{k}": v for k, v in s.items()},
    "module.module., n_averaged": lambda s: {
        "n_averaged": torch.tensor(3), **{f"module.module.{k}": v for k, v in s.items()}
    },
    "model": lambda s: {"model": s, "epoch": 3},
    "state_dict": lambda s: {"state_dict": {f"module.{k}": v for k, v in s.items()}},
    "model_state_dict": lambda s: {"model_state_dict": s, "loss": 0.1},
    "mask_values": lambda s: {**s, "mask_values": [0, 1]},
    "mask_values within": lambda s: {"model": {**s, "mask_values": [0, 255]}},
    "ours": lambda s: {
        "format": 1,
        "model": s,
        "architecture": Architecture("unet", 3, 2, None, 4, False).to_dict(),
        "labels": Labels((0, 255)).to_dict(),
        "preprocessing": Preprocessing(3, (0.0,) * 3, (1.0,) * 3, 0.5).to_dict(),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def network() -> UNet:
    """A network whose classes win half of a noisy image's pixels each."""
    torch.manual_seed(1)
    network = UNet(3, 2, width=4).eval()
    with torch.no_grad():
        logits = network(torch.rand(1, 3, 64, 64))
        network.outc.conv.bias[0] += (logits[:, 1] - logits[:, 0]).median()
    return network


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photo") / "x.png"
    pixels = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_every_form_predicts_the_same(
    network: UNet, photo: Path, tmp_path: Path, form: str
) -> None:
    path = tmp_path / "x.pth"
    torch.save(FORMS[form](network.state_dict()), path)
    found = Predictor.from_checkpoint(path, device="cpu")(photo).ids
    pixels, device = Preprocessing(3, (0.0,) * 3, (1.0,) * 3, 0.5), torch.device("cpu")
    backend = TorchBackend(network, pixels, device)
    plain = Predictor([LoadedModel(backend, Labels((0, 255)), pixels, None, [])], device=device)
    assert (found == plain(photo).ids).all()
    assert 0 < found.mean() < 1  # both classes


def test_the_notes_say_what_was_inferred(network: UNet, tmp_path: Path) -> None:
    torch.save(FORMS["_orig_mod.module."](network.state_dict()), tmp_path / "x.pth")
    model = read_model(tmp_path / "x.pth")
    notes = "; ".join(model.notes)
    assert "_orig_mod.module." in notes and "width 4, transposed" in notes and "2 classes" in notes


@pytest.mark.parametrize("bilinear", [False, True])
@pytest.mark.parametrize(("width", "channels", "classes"), [(4, 1, 2), (8, 3, 5)])
def test_the_network_is_inferred_from_shapes(
    bilinear: bool, width: int, channels: int, classes: int
) -> None:
    state = UNet(channels, classes, width=width, bilinear=bilinear).state_dict()
    assert infer_unet(state) == Architecture("unet", channels, classes, None, width, bilinear)


def test_one_sigmoid_output_is_the_same_as_two(photo: Path, tmp_path: Path) -> None:
    torch.manual_seed(2)
    network = UNet(3, 1, width=4).eval()
    with torch.no_grad():
        network.outc.conv.bias -= network(torch.rand(1, 3, 64, 64)).median()
    torch.save(network.state_dict(), tmp_path / "x.pth")
    predictor = Predictor.from_checkpoint(tmp_path / "x.pth", device="cpu", scale=1.0)
    pixels = torch.from_numpy(np.asarray(Image.open(photo)).copy()).permute(2, 0, 1)[None] / 255
    with torch.no_grad():
        expected = torch.sigmoid(network(pixels))[0, 0] > 0.5
    assert (predictor(photo).ids == expected.numpy()).mean() > 0.999


def test_a_submodule_called_module_is_not_damaged() -> None:
    state = {"module.a": torch.zeros(1), "b.module.c": torch.zeros(1)}
    assert strip_prefixes(state) == (state, "")


def test_the_network_in_a_lightning_module_is_found(
    network: UNet, photo: Path, tmp_path: Path
) -> None:
    """Beside it may be a loss's weights and the images' mean."""
    state = {f"model.{name}": tensor for name, tensor in network.state_dict().items()}
    rest = {"loss.weight": torch.ones(2), "mean": torch.zeros(1, 3, 1, 1)}
    for others, left in (({}, ""), (rest, "; left: loss.weight, mean")):
        content = {"state_dict": {**state, **others}, "pytorch-lightning_version": "2.5.0"}
        torch.save(content, tmp_path / "x.ckpt")
        torch.save(network.state_dict(), tmp_path / "x.pth")
        found = read_model(tmp_path / "x.ckpt")
        assert found.architecture == read_model(tmp_path / "x.pth").architecture is not None
        assert f"prefix model. stripped{left}" in found.notes
        masks = [
            Predictor.from_checkpoint(tmp_path / name)(photo).mask for name in ("x.ckpt", "x.pth")
        ]
        assert np.array_equal(*masks)


@pytest.mark.parametrize(
    "other",
    [{"teacher.inc.weight": torch.zeros(1, 1, 3, 3)}, {"model.head.weight": torch.zeros(1)}],
)
def test_a_network_that_is_not_alone_or_not_known_keeps_its_prefix(
    other: dict[str, Tensor],
) -> None:
    known = (
        {} if "model.head.weight" in other else {"model.outc.conv.weight": torch.zeros(2, 4, 1, 1)}
    )
    state = {**known, **other}
    assert take_from_module(state) == (state, None)


def test_mismatches_are_named(network: UNet) -> None:
    other = UNet(3, 5, width=4).state_dict()
    other["extra"] = torch.zeros(1)
    with pytest.raises(UserError) as caught:
        check_weights(network.state_dict(), other, Path("x.pt"))
    assert "outc.conv.weight is (5, 4, 1, 1) in the file, (2, 4, 1, 1)" in str(caught.value)
    assert "extra" in str(caught.value)


def test_only_the_first_problems_are_named(network: UNet) -> None:
    with pytest.raises(UserError) as caught:
        check_weights(network.state_dict(), {"x": torch.zeros(1)}, Path("x.pt"))
    count = len(network.state_dict()) + 1
    line = str(caught.value)
    assert line.count("missing in the file") == 3
    assert f"; and {count - 3} more; use the flags" in line
    three = {**network.state_dict(), **{f"extra{k}": torch.zeros(1) for k in range(3)}}
    with pytest.raises(UserError, match=r"^x.pt: .*extra2 is not in the network; use the flags"):
        check_weights(network.state_dict(), three, Path("x.pt"))


def test_weights_that_fit_are_loaded(network: UNet) -> None:
    plain = Architecture("unet", 3, 2, None, 4)
    other = build_loaded(plain, network.state_dict(), Path("x.pt"))
    for name, value in network.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    assert other(torch.zeros(1, 3, 32, 32)).shape == (1, 2, 32, 32)
    weight = other.get_parameter("down1.maxpool_conv.1.double_conv.0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last) and weight.requires_grad


def write_ours(path: Path, network: UNet, **changed: Any) -> Path:
    torch.save({**FORMS["ours"](network.state_dict()), **changed}, path)
    return path


def test_of_our_checkpoints_the_average_is_read(network: UNet, tmp_path: Path) -> None:
    average = {name: value + 1 for name, value in network.state_dict().items()}
    path = write_ours(tmp_path / "x.pt", network, ema=average, threshold=0.25)
    model = read_model(path)
    assert torch.equal(model.state["inc.double_conv.0.weight"], average["inc.double_conv.0.weight"])
    assert model.threshold == 0.25 and model.notes == []
    assert model.labels == Labels((0, 255))
    assert model.preprocessing is not None and model.preprocessing.scale == 0.5
    assert model.architecture == Architecture("unet", 3, 2, None, 4, False)
    path = write_ours(tmp_path / "x.pt", network, ema=None)
    assert torch.equal(read_model(path).state["outc.conv.bias"], network.outc.conv.bias)
    assert read_model(path).threshold is None


@pytest.mark.parametrize(
    "changed", [{"architecture": {"layers": 9}}, {"labels": {}}, {"preprocessing": {"mean": 1}}]
)
def test_a_checkpoint_of_another_version_is_named(
    network: UNet, tmp_path: Path, changed: dict[str, Any]
) -> None:
    path = write_ours(tmp_path / "x.pt", network, unet_ddp="9.9", **changed)
    with pytest.raises(
        UserError, match=r"x.pt: .* written by another version of unet_ddp \('9.9'\)"
    ):
        read_model(path)


def nested(levels: int) -> list[Any]:
    """Return lists that print as 8**levels items, in a few hundred bytes of a file."""
    value: list[Any] = [0] * 8
    for _ in range(levels):
        value = [value] * 8
    return value


HOSTILE: list[tuple[str, Any, str]] = [
    ("format", "1", "format: '1'; expected a whole number"),
    ("format", 2, "format 2; this version reads format 1: update unet_ddp"),
    ("format", 0, "format: 0; expected 1"),
    ("architecture", [], "expected fields by name"),
    ("architecture.model", 5, "expected text"),
    ("architecture.model", "yolo", "expected unet"),
    ("architecture.model", nested(12), "a list of 8"),
    ("architecture.encoder", nested(12), "a list of 8"),
    ("architecture.encoder", "x" * 10**6, "xxx"),
    ("architecture.channels", 0, "1 or more"),
    ("architecture.channels", "3", "a whole number"),
    ("architecture.channels", True, "a whole number"),
    ("architecture.channels", 10**9, "at most"),
    ("architecture.channels", 4, "4 channels; labels and preprocessing have 3"),
    ("architecture.num_classes", 1, "2 or more"),
    ("architecture.num_classes", 256, "at most 255"),
    ("architecture.num_classes", 3, "3 classes; labels and preprocessing have 2"),
    ("architecture.width", -4, "1 or more"),
    ("architecture.width", 4.0, "a whole number"),
    ("architecture.width", 10**500, "a number of about 500 digits"),
    ("architecture.bilinear", "no", "true or false"),
    ("architecture.bilinear", None, "true or false"),
    ("architecture.depth", 5, "unknown"),
    ("labels", None, "expected fields by name"),
    ("labels.values", [0, 300000], "at most 65535"),
    ("labels.values", [0, -1], "0 or more"),
    ("labels.values", [5, 5], "different"),
    ("labels.values", [0, 1.5], "a whole number"),
    ("labels.values", "01", "a list"),
    ("labels.values", [0], "labels and preprocessing have 1"),
    ("labels.values", list(range(300)), "255"),
    ("labels.values", [0] * 10**6, "1000000"),
    ("labels.values", nested(12), "a list of 8"),
    ("labels.rgb", 1, "true or false"),
    ("labels.ignore", "255", "a whole number"),
    ("labels.ignore", 0, "ignored"),
    ("labels.ignore", 2**40, "at most"),
    ("labels.palette", [[0, 0]], "a list of 3"),
    ("labels.palette", [[0, 0, 256]] * 2, "at most 255"),
    ("labels.names", ["a"], "names ['a']: expected 2, one for each class, all different"),
    ("labels.names", ["a", "a"], "different"),
    ("labels.names", ["a", 7], "expected text"),
    ("labels.names", "ab", "a list"),
    ("labels.names", ["a", "b" * 10**6], "characters"),
    ("labels.threshold", 0.5, "a whole number"),
    ("labels.threshold", -1, "0 or more"),
    ("preprocessing", 3, "expected fields by name"),
    ("preprocessing.scale", 50.0, "at most 1"),
    ("preprocessing.scale", 0.0, "above 0"),
    ("preprocessing.scale", -1.0, "above 0"),
    ("preprocessing.scale", float("nan"), "above 0"),
    ("preprocessing.scale", "0.5", "a number"),
    ("preprocessing.channels", 1, "channel"),
    ("preprocessing.mean", [0.0] * 2, "mean"),
    ("preprocessing.mean", [0.0, 0.0, float("inf")], "inf"),
    ("preprocessing.mean", "000", "a list"),
    ("preprocessing.std", [1.0, 1.0, 0.0], "above 0"),
    ("preprocessing.std", [1.0, 1.0, float("nan")], "nan"),
    ("preprocessing.std", None, "a list"),
    ("preprocessing.dtype", "float16", "uint8"),
    ("preprocessing.dtype", ["uint8"], "expected text"),
    ("preprocessing.low", float("nan"), "nan"),
    ("preprocessing.low", 256.0, "high"),
    ("preprocessing.high", float("inf"), "inf"),
    ("preprocessing.nodata", "-9999", "a number"),
    ("threshold", float("nan"), "above 0"),
    ("threshold", 0.0, "above 0"),
    ("threshold", 1, "below 1"),
    ("threshold", "0.5", "a number"),
    ("model", 7, "expected tensors by name"),
    ("model", {}, "missing"),
    ("model", {"x": 3}, "expected"),
    ("model", {5: torch.zeros(1)}, "expected"),
    ("ema", [1], "expected tensors by name"),
    ("best", 0.9, "expected fields by name"),
    ("best", {"score": "high", "epoch": 0}, "a number"),
    ("best", {"score": 0.5, "epoch": -1}, "0 or more"),
    ("best", {"score": 0.5}, "missing"),
    ("config", [], "expected values by name"),
    ("names", nested(12), "expected text"),
]


@pytest.mark.parametrize(
    ("where", "value", "message"),
    HOSTILE,
    ids=[f"{k}-{where}" for k, (where, _, _) in enumerate(HOSTILE)],
)
def test_a_value_that_no_run_writes_is_refused_in_one_line(
    network: UNet, tmp_path: Path, where: str, value: Any, message: str
) -> None:
    content = FORMS["ours"](network.state_dict())
    *groups, name = where.split(".")
    target = content
    for group in groups:
        target = target[group]
    target[name] = value
    path = tmp_path / "x.pt"
    torch.save(content, path)
    started = time.process_time()
    with pytest.raises(UserError) as caught:
        open_model(path, torch.device("cpu"))
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and message in line and len(line) < 500, line
    assert time.process_time() - started < 5


def test_weights_that_are_not_finite_are_refused_with_their_name(
    network: UNet, tmp_path: Path
) -> None:
    for name, bad in (
        ("down1.maxpool_conv.1.double_conv.0.weight", float("nan")),
        ("outc.conv.bias", float("inf")),
        ("inc.double_conv.1.running_var", -1.0),
    ):
        state = {key: value.clone() for key, value in network.state_dict().items()}
        state[name].view(-1)[-1] = bad
        path = write_ours(tmp_path / "x.pt", network, model=state)
        with pytest.raises(UserError, match=rf"x.pt: .*{re.escape(name)} (contains|is)"):
            open_model(path, torch.device("cpu"))


@pytest.mark.filterwarnings("ignore:Sparse invariant")  # of torch below 2.15
@pytest.mark.parametrize("kind", ["stride 0", "sparse", "complex", "text", "width", "meta"])
def test_small_files_allocate_no_large_network(network: UNet, tmp_path: Path, kind: str) -> None:
    state: dict[str, Any] = dict(network.state_dict())
    name, changed = "outc.conv.weight", {}
    if kind == "stride 0":
        state[name] = torch.zeros(1).expand(2, 4, 1, 1)
    elif kind == "sparse":
        state[name] = torch.sparse_coo_tensor(size=(2, 4, 1, 1), check_invariants=False)
    elif kind == "complex":
        state[name] = state[name].to(torch.complex64)
    elif kind == "text":
        state[name] = "weights"
    elif kind == "meta":
        state[name] = torch.empty(2, 4, 1, 1, device="meta")
    else:
        wide = Architecture("unet", 3, 2, None, 1024, False)  # 2 billion weights
        changed["architecture"] = wide.to_dict()
    path = write_ours(tmp_path / "x.pt", network, model=state, **changed)
    started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = r"refused: a tensor \[2, 4, 1, 1\] whose numbers are not all in the file"
    with pytest.raises(UserError, match=rf"x.pt: {'' if kind in ('text', 'width') else refused}"):
        open_model(path, torch.device("cpu"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - started < 200_000  # kB


def test_labels_and_sizes_of_other_programs_are_checked_too(network: UNet, tmp_path: Path) -> None:
    for values in ([0, float("nan")], [0, 1e30], [0, 0], [[0, 0], [1, 1]], ["a", "b"], [0, [1]]):
        torch.save({**network.state_dict(), "mask_values": values}, tmp_path / "x.pt")
        with pytest.raises(UserError, match=r"x.pt: mask_values: "):
            read_model(tmp_path / "x.pt")
    for shape in ((2, 0, 1, 1), (300, 4, 1, 1), (0, 4, 1, 1)):
        torch.save(
            {**network.state_dict(), "outc.conv.weight": torch.zeros(shape)}, tmp_path / "x.pt"
        )
        with pytest.raises(UserError, match=r"x.pt: "):
            open_model(tmp_path / "x.pt", torch.device("cpu"))


def test_a_file_without_weights_is_named_with_its_keys(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "loss": 0.5}, tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"x.pt: contains no weights; its keys are epoch, loss$"):
        read_model(tmp_path / "x.pt")
    for content, said in (
        ({}, ": nothing was saved in it"),
        ({"model": {}}, ": nothing was saved in it"),
        ({1: 2}, "; its keys are 1"),
    ):
        torch.save(content, tmp_path / "x.pt")
        with pytest.raises(UserError, match=f"x.pt: contains no weights{said}$"):
            read_model(tmp_path / "x.pt")


def test_weights_of_an_unknown_network_have_no_architecture(tmp_path: Path) -> None:
    torch.save({"module.a": torch.zeros(2), "module.b": torch.ones(1)}, tmp_path / "x.pt")
    model = read_model(tmp_path / "x.pt")
    assert model.state.keys() == {"a", "b"}
    assert (model.architecture, model.labels, model.preprocessing) == (None, None, None)
    assert model.notes == ["prefix module. stripped"]


@pytest.mark.parametrize(
    ("values", "classes", "labels"),
    [
        (None, 2, Labels((0, 255))),
        (None, 3, Labels((0, 1, 2))),
        ([0, 1], 2, Labels((0, 1))),
        ([0.0, 0.5], 2, Labels((0, 127))),  # shares of 255
        ([0, 1, 2], 2, Labels((0, 255))),  # of another network
        ([[0, 0, 0], [255, 1, 2]], 2, Labels((0, 0xFF0102), rgb=True)),
    ],
)
def test_labels_of_other_programs(
    tmp_path: Path, values: Any, classes: int, labels: Labels
) -> None:
    state = UNet(3, classes, width=2).state_dict()
    torch.save(state if values is None else {**state, "mask_values": values}, tmp_path / "x.pt")
    model = read_model(tmp_path / "x.pt")
    assert model.labels == labels
    assert model.preprocessing == Preprocessing(3, (0.0,) * 3, (1.0,) * 3, 0.5)


def test_scale_is_for_files_that_do_not_contain_theirs(network: UNet, tmp_path: Path) -> None:
    ours, theirs = write_ours(tmp_path / "ours.pt", network), tmp_path / "theirs.pt"
    torch.save(network.state_dict(), theirs)
    with pytest.raises(UserError, match=r"--scale 0.7: this checkpoint contains its scale, 0.5;"):
        read_model(ours, 0.7)
    scaled = read_model(theirs, 1.0)
    assert scaled.preprocessing is not None and scaled.preprocessing.scale == 1.0
    for scale in (0.0, 1.01):
        with pytest.raises(UserError, match="must be above 0 and at most 1"):
            read_model(theirs, scale)


def test_the_scale_that_is_used_is_said(network: UNet, tmp_path: Path) -> None:
    """Not where only the weights are taken, as by --load: training has its own scale."""
    theirs = tmp_path / "theirs.pt"
    torch.save(network.state_dict(), theirs)
    assert not [note for note in read_model(theirs).notes if "scale" in note]
    for scale, said in ((None, 0.5), (1.0, 1), (0.25, 0.25)):
        notes = Predictor.from_checkpoint(theirs, scale=scale, device="cpu").notes
        assert f"images at scale {said}: it contains none (--scale)" in notes
    ours = write_ours(tmp_path / "ours.pt", network)
    assert Predictor.from_checkpoint(ours, device="cpu").notes == []


def test_an_address_with_a_dot_may_be_a_run(memory_store: MemoryBucket) -> None:
    run, file = Url("s3://bucket/dots/run.v2"), Url("s3://bucket/dots/other.pth")
    put(file, b"weights")
    assert str(find_model(str(run))) == f"{run}/best.pt"
    assert find_model(str(file)) == file
    assert find_model(f"{run}/last.pt") == run / "last.pt"  # a pointer stands for it
    put(run / "last.json", b"{}")
    assert find_model(str(run)) == run / "last.pt"  # a run without validation
    put(run / "best.pt", b"weights")
    assert find_model(str(run)) == run / "best.pt"


def test_the_checkpoint_to_predict_with_is_found(tmp_path: Path) -> None:
    def touch(name: str, age: int) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        saved = 1e9 - age * 86400  # days: of one day they could not be chosen from
        os.utime(path, (saved, saved))
        return path

    assert find_model("some.pt", tmp_path) == Path("some.pt")
    assert find_model(str(tmp_path), tmp_path) == tmp_path / "best.pt"
    with pytest.raises(
        UserError, match=r"best.pt: not found; train first, or use --model RUN/best.pt"
    ):
        find_model(None, tmp_path)
    (tmp_path / "broken" / "best.pt").mkdir(parents=True)
    touch("a/best.pt", 30)
    own = touch("best.pt", 20)
    assert find_model(None, tmp_path) == own
    newer = touch("b/best.pt", 10)
    assert find_model(None, tmp_path) == newer  # not the older one beside it, the demo set's
    touch("last.pt", 5)
    assert find_model(None, tmp_path) == own  # it was trained on
    last = touch("all/last.pt", 0)  # without validation
    assert find_model(None, tmp_path) == find_model(str(tmp_path / "all")) == last
    shared = touch("shared/model.safetensors", 0)
    assert find_model(str(shared.parent)) == shared
    assert list(list_runs(tmp_path)) == [last.parent, tmp_path, newer.parent, tmp_path / "a"]


def test_no_checkpoint_of_an_old_run_is_read_to_find_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue: each last.pt without a best.pt was, a quarter of a second each, with every prediction."""
    reads, read = [], torch.load

    def count(path: Path, *values: Any, **how: Any) -> Any:
        reads.append(path)
        return read(path, *values, **how)

    def write(name: str, age: int, step: int = 5) -> Path:
        path = tmp_path / name / "last.pt"
        path.parent.mkdir()
        torch.save({**FORMS["ours"]({}), "position": {"epoch": 0, "step": step}}, path)
        os.utime(path, (1e9 - age * 86400,) * 2)
        return path

    for k in range(10):
        write(f"old{k}", 10 + k)
    monkeypatch.setattr(torch, "load", count)
    newest = write("newest", 1)
    assert find_model(None, tmp_path) == newest and {*reads} == {newest}
    failed = write("failed", 0, step=0)
    reads.clear()
    assert find_model(None, tmp_path) == newest and {*reads} == {failed, newest}
    assert len(list_runs(tmp_path)) == 11  # without the failed one
    failed.unlink()
    (newest.parent / "metrics.csv").write_text("epoch,step\n1,5\n")
    reads.clear()
    assert len(list_runs(tmp_path)) == 11 and not reads  # an epoch is done
    newest.rename(newest.with_name("best.pt"))
    reads.clear()
    assert len(list_runs(tmp_path)) == 11 and not reads


def test_a_run_without_a_step_is_not_one_of_other_data_to_choose_from(tmp_path: Path) -> None:
    """As of a start that failed, between two of the same data and day."""
    for k, (channels, step) in enumerate([(3, 5), (1, 0), (3, 5)]):
        path = tmp_path / str(k) / "last.pt"
        path.parent.mkdir()
        pixels = Preprocessing(channels, (0.0,) * channels, (1.0,) * channels, 0.5).to_dict()
        content = {**FORMS["ours"]({}), "preprocessing": pixels}
        content["architecture"] = Architecture("unet", channels, 2, None, 4, False).to_dict()
        torch.save({**content, "position": {"epoch": 0, "step": step}}, path)
        os.utime(path, (1e9 + k, 1e9 + k))
    assert find_model(None, tmp_path) == tmp_path / "2" / "last.pt"
