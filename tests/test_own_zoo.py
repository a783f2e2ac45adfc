"""Each part of the zoo is the same part everywhere, or one line refuses it before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import zoo
from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main, call_train
from unet_ddp import Predictor
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.errors import UserError
from unet_ddp.prediction.backends import open_model
from unet_ddp.training.own_network import try_network

FLAGS = [*["--workers", "0", "--device", "cpu", "--precision", "float32", "--augmentation", "none", "--validation", "20"],
         *["--width", "3", "--epochs", "2", "--batch-size"]]  # fmt: skip
QUICK = ["rebound", "constant", "tensor, changing", "counter", "weight norm", "extra", "growing"]
QUICK += [
    "counter, predicting",
    "method",
    "softmax",
    "scripted",
    "mixed",
    "compiled",
    "same",
    "shared",
    "built",
    "table",
    "cached",
    "versioned",
]
SLOW = [
    pytest.param(name, marks=pytest.mark.thorough) for name in zoo.NETWORKS if name not in QUICK
]


LOSSES = ["method", "number", "tensor", "learnt", "versioned", "draws"]
SLOW_LOSSES = [
    pytest.param(name, marks=pytest.mark.thorough) for name in zoo.LOSSES if name not in LOSSES
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    make_set(tmp_path, 10)
    monkeypatch.chdir(tmp_path)
    return str(tmp_path)


def name_of(kind: str, name: str) -> str:
    return f"tests.zoo:{kind}_{name}".replace(" ", "_").replace(",", "")


def last(run: str) -> dict[str, Any]:
    return checkpoint.load(Path("checkpoints", run, "last.pt"))


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for part in ("model", "ema", "loss"):
        for name, value in (one[part] or {}).items():
            assert torch.equal(value, other[part][name]), f"{part}: {name}"
    assert one["numbers"] == other["numbers"]


def train_whole_and_stopped(folder: str, flags: list[str], said: str) -> bool:
    """Whether a run was taken; then one that was stopped and resumed ends with the same bits."""
    argv = [*data_flags(Path(folder)), *FLAGS, "2", "--ema", "0.5", *flags]
    status, _, err = call_train([*argv, "--exp-name", "whole"], folder)
    if said:
        assert status == 2 and said in err and err.count("error: ") == 1, err
        assert not Path("checkpoints/whole/last.pt").exists() and "Traceback" not in err
        return False
    assert status == 0, err
    assert call_train([*argv, "--exp-name", "part", "--stop-after", "3"], folder)[0] == 0
    more = [*flags, "--exp-name", "part", "--workers", "0", "--device", "cpu", "--resume"]
    status, _, err = call_train(more, folder)
    assert status == 0, err
    assert_same(last("whole"), last("part"))
    return True


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_a_network_predicts_as_it_was_trained(folder: str, name: str, ranks: Ranks) -> None:
    make, said = zoo.NETWORKS[name]
    part = name_of("N", name)
    if not train_whole_and_stopped(folder, ["--model", part], said):
        return
    saved = last("whole")
    own: torch.nn.Module = make(3, 2, width=3)
    own.load_state_dict(saved["ema"])
    dtype = next(own.parameters()).dtype
    cpu, images = torch.device("cpu"), torch.rand(1, 3, 32, 32)
    backend: Any = open_model("checkpoints/whole/last.pt", cpu, network=part).backend
    with torch.inference_mode():
        expected: Tensor = own.eval()(images.to(dtype)).float()
        found = backend.network(images.to(next(backend.network.parameters()).dtype)).float()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    if name == "counter":  # the layers that it skips are not frozen
        argv = [
            *data_flags(Path(folder)),
            *FLAGS,
            "1",
            "--ema",
            "0.5",
            "--model",
            part,
            "--exp-name",
            "two",
        ]
        outcomes = ranks.run(2, call_train, argv, folder)
        assert [status for status, _, _ in outcomes] == [0, 0], outcomes
        assert last("two")["numbers"] == saved["numbers"]
        for key in ("block.weight", "head.weight"):
            torch.testing.assert_close(
                last("two")["model"][key], saved["model"][key], rtol=1e-3, atol=1e-3
            )


@pytest.mark.parametrize("name", ["table", "longest"])
def test_what_a_network_first_keeps_in_validation_serves_training(folder: str, name: str) -> None:
    """Issue: larger images are scored than trained on; the next step had a tensor of inference mode."""
    argv = [*data_flags(Path(folder)), *FLAGS, "2", "--crop-size", "16", "16", "--model"]
    status, _, err = call_train([*argv, name_of("N", name)], folder)
    assert status == 0, err


def test_a_network_s_own_message_is_shown_without_colours() -> None:
    red = zoo.network(load_state_dict=zoo.refuse)
    with pytest.raises(UserError, match=r"does not take its own state dict \(not this one\)"):
        try_network("red", zoo.Plain(3, 2), lambda: red(3, 2), torch.rand(2, 3, 16, 16))


@pytest.mark.parametrize("name", [*LOSSES, *SLOW_LOSSES])
def test_a_loss_goes_on_as_it_was(folder: str, name: str) -> None:
    taken = train_whole_and_stopped(folder, ["--loss", name_of("L", name)], zoo.LOSSES[name][1])
    if taken and name in ("buffer", "number"):  # one for each of 2 epochs of 4 steps
        counts = [*last("whole")["loss"].values(), *last("whole")["numbers"].values()]
        assert counts and {float(count) for count in counts} == {8.0}
    if name == "learnt":
        assert [float(scale) for scale in last("whole")["loss"].values()] != [0.0]


def test_numbers_of_a_loss_and_a_network_are_the_same_on_two_ranks_and_after_a_resume(
    folder: str, ranks: Ranks
) -> None:
    """Gradients are the mean over ranks, and the loss grows with its number: of each rank, it was restored."""
    parts = ["--model", name_of("N", "counter"), "--loss", name_of("L", "number")]
    argv = [*data_flags(Path(folder)), *FLAGS, "1", "--epochs", "1", *parts, "--exp-name"]
    resume = [*parts, "--workers", "0", "--device", "cpu", "--resume", "--exp-name", "part"]
    stopped = [*argv, "part", "--stop-after", "2"]
    for command in ([*argv, "whole"], stopped, resume):
        outcomes = ranks.run(2, call_train, command, folder)
        assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    numbers = last("whole")["numbers"]
    assert {name[:6] for name in numbers} == {"model:", "region"}
    assert set(numbers.values()) == {4.0}  # steps of an epoch
    assert_same(last("whole"), last("part"))


FLOAT16, INT8 = ["--precision", "float16"], ["--precision", "int8", "--tolerance", "0.2"]
MORE_FORMS = {
    "constant": [FLOAT16],
    "double": [FLOAT16, ["--whole"], ["--bioimageio", "--license", "mit"]],
    "made": [FLOAT16],
    "weight norm": [FLOAT16, INT8],
}
NO_FORM = {
    ("branch", "float32"): "which of its layers run depends on the image's pixels;",
    ("mixed", "float32"): "torch can't trace it (Input type",  # all of a file is of one type
    ("compiled", "float32"): "can't be run on 131x97 pixels",
    ("cached", "float32"): "torch can't trace it (unhashable type",
    (
        "orthogonal",
        "float32",
    ): "torch can't trace it (No ONNX function found for",
    ("made", "float16"): "can't be opened again (",
    (
        "remembered",
        "float32",
    ): "torch can't trace it ('encoder')",  # its hook writes to another copy's
}
# Graphs as of others.
ALIKE = ("partial", "method", "huge", "unused", "integers", "double", "constant")
ALIKE_EXPORTED = (*ALIKE, "buffer", "not persistent", "tied", "rebound", "spectral norm", "plain")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.release] * (name in ALIKE_EXPORTED))
        for name, (_, said) in zoo.NETWORKS.items()
        if not said
    ],
)
def test_an_exported_network_has_the_masks_of_its_checkpoint_or_one_line(
    folder: str, name: str
) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    part, cpu, saved = name_of("N", name), torch.device("cpu"), "checkpoints/own/last.pt"
    argv = [*data_flags(Path(folder)), *FLAGS, "2", "--model", part, "--exp-name", "own"]
    assert call_train(argv, folder)[0] == 0
    own = Predictor([open_model(saved, cpu, network=part)], device=cpu)
    for form in ([], *MORE_FORMS.get(name, [])):
        precision = form[1] if "--precision" in form else "float32"
        file = "own.zip" if "--bioimageio" in form else "own.onnx"
        words = ["export", saved, file, "--network", part, "--runtime", "onnxruntime", *form]
        Path(file).unlink(missing_ok=True)
        status, out, err = call_main("unet_ddp.__main__", words, folder)
        said = NO_FORM.get((name, precision), "")
        if said:
            assert status == 2 and not Path(file).exists()
            assert err.startswith(f"error: {file}: {said}") and err.count("\n") == 1, err
            assert f"predict with {saved}" in err
            continue
        assert status == 0 and not err, err
        assert "100.000 % of pixels equal" in out or precision != "float32", out
        if form in ([], FLOAT16):
            exported = Predictor([open_model(file, cpu)], device=cpu)
            for image in Path("imgs").iterdir():
                found, expected = (each(image).probabilities for each in (exported, own))
                assert abs(found - expected).max() < (0.01 if form else 1e-5)


def started(flags: list[str], run: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state that a run of 2 epochs began with, and its last checkpoint."""
    argv = [*data_flags(Path.cwd()), *FLAGS, "2", "--callback", "tests.zoo:Start", *flags]
    status, _, err = call_train([*argv, "--ema", "0.5", "--exp-name", run], str(Path.cwd()))
    assert status == 0, err
    return zoo.Start.state, last(run)


LOADED = ["plain", "rebound", "counter", "versioned"]
LOADED = [
    pytest.param(
        name,
        marks=[pytest.mark.thorough] * (name not in LOADED)
        + [pytest.mark.release] * (name in ALIKE),
    )
    for name, (_, said) in zoo.NETWORKS.items()
    if not said
]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", LOADED)
def test_a_new_run_begins_with_a_loaded_network_s_state_and_new_numbers(name: str) -> None:
    flags = ["--model", name_of("N", name)]
    first, saved = started(flags, "first")
    second, _ = started([*flags, "--load", "checkpoints/first/last.pt"], "second")
    assert first["model"].keys() == second["model"].keys() == saved["ema"].keys()
    for key, value in second["model"].items():
        assert torch.equal(value, saved["ema"][key]), key
    assert second["numbers"] == first["numbers"]


@pytest.mark.thorough
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", [name for name, (_, said) in zoo.LOSSES.items() if not said])
def test_a_new_run_begins_with_a_new_loss(name: str) -> None:
    flags = ["--model", name_of("N", "plain"), "--loss", name_of("L", name)]
    first, saved = started(flags, "first")
    assert first["loss"] != saved["loss"] or not saved["loss"]
    second, _ = started([*flags, "--load", "checkpoints/first/last.pt"], "second")
    assert first["loss"] == second["loss"] and second["numbers"] == first["numbers"]


STATEFUL = [("N", name) for name in ("buffer", "rebound", "counter", "weight norm", "double")]
STATEFUL += [("L", name) for name in ("buffer", "number", "learnt")]
FOUR = [
    pytest.param(
        kind, name, marks=[pytest.mark.release] * (name in ("weight norm", "double", "number"))
    )
    for kind, name in STATEFUL
]


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "name"), FOUR)
def test_state_is_the_same_on_four_ranks_as_on_one_and_after_a_resume(
    folder: str, kind: str, name: str, ranks: Ranks
) -> None:
    parts = ["--model", name_of("N", name if kind == "N" else "plain")]
    parts += ["--loss", name_of("L", name)] * (kind == "L")
    argv = [*data_flags(Path(folder)), *FLAGS]
    whole = [*parts, "--ema", "0.5", "--exp-name"]
    assert call_train([*argv, "4", *whole, "one"], folder)[0] == 0
    resume = [*parts, "--workers", "0", "--device", "cpu", "--resume", "--exp-name", "part"]
    for words in ([*argv, "1", *whole, "four"], [*argv, "1", *whole, "part", "--stop-after", "3"], resume):  # fmt: skip
        outcomes = ranks.run(4, call_train, words, folder)
        assert [status for status, _, _ in outcomes] == [0] * 4, outcomes
    one, four = last("one"), last("four")
    assert_same(four, last("part"))
    assert one["numbers"] == four["numbers"]
    for kept in ("model", "ema", "loss"):
        for key, value in (one[kept] or {}).items():
            if not key.startswith(("encoder.0.bias", "encoder.1.running_mean")):  # of no gradient
                torch.testing.assert_close(four[kept][key], value, rtol=1e-3, atol=1e-3)
