"""`unet_ddp.evaluate`, `check` and `export` return what the commands print, of files and of arrays."""

from __future__ import annotations

import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import unet_ddp
from tests.conftest import make_set
from tests.prediction.models import write_model
from tests.ranks import call_main
from unet_ddp.commands.export_call import RuntimeScores
from unet_ddp.data.labels import Labels


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> unet_ddp.TrainedRun:
    """A run on ten pairs, in the folder with them."""
    folder = make_set(tmp_path_factory.mktemp("run"), 10)
    before = Path.cwd()
    os.chdir(folder)
    try:
        how: dict[str, Any] = {
            "width": 4,
            "epochs": 2,
            "batch_size": 2,
            "workers": 0,
            "device": "cpu",
            "lr": 0.01,
        }
        return unet_ddp.train(images=str(folder / "imgs"), masks=str(folder / "masks"), **how)
    finally:
        os.chdir(before)


def check_refused(call: Any, said: str, **arguments: Any) -> None:
    with pytest.raises(unet_ddp.UserError) as caught:
        call(**arguments)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def arrays(folder: Path) -> tuple[list[Any], list[Any]]:
    paths = sorted((folder / "imgs").iterdir())
    images = [np.asarray(Image.open(path)) for path in paths]
    return images, [np.asarray(Image.open(folder / "masks" / path.name)) for path in paths]


def test_scores_are_those_of_the_command(run: unet_ddp.TrainedRun, tmp_path: Path) -> None:
    folder, threads = run.path.parent, torch.get_num_threads()
    images, masks = str(folder / "imgs"), str(folder / "masks")
    argv = [
        "-m", str(run.path), "--images", images, "--masks", masks, "-o", str(tmp_path / "out"),
        "--device=cpu",
    ]  # fmt: skip
    status, out, err = call_main("unet_ddp.commands.evaluate", argv, ".")
    assert status == 0, err
    result = unet_ddp.evaluate(run, folder / "imgs", masks, device="cpu")
    assert torch.get_num_threads() == threads
    assert str(result) == result.text == out[: out.index("\nwrote ")]
    scores = json.loads((tmp_path / "out/scores.json").read_text())
    assert (result.images, result.dice, result.iou) == (10, scores["dice"], scores["iou"])
    assert result.pixel_accuracy == scores["pixel_accuracy"]
    assert result.calibration_error == scores["calibration_error"]
    assert (result.threshold, result.best_threshold) == (
        scores["threshold"],
        scores["best_threshold"],
    )
    assert result.classes[1].recall == scores["classes"][1]["recall"]
    assert list(result.intervals["Dice"]) == scores["intervals"]["dice"]
    assert [*result.per_image] == [f"{letter}x" for letter in "abcdefghij"] and not result.objects
    assert all(0 <= score <= 1 for score in result.per_image.values())
    assert not (run.path / "evaluation").exists()


def test_what_the_functions_return_can_be_pickled(run: unet_ddp.TrainedRun) -> None:
    folder = run.path.parent
    data = {"images": folder / "imgs", "masks": folder / "masks"}
    scores = unet_ddp.evaluate(run, **data, device="cpu")
    runtime = RuntimeScores(0.5, 0.5, 1.0, 2.0, True)
    written = unet_ddp.ExportResult(Path("a.onnx"), {"onnxruntime": runtime}, "text")
    for value in (run, scores, unet_ddp.check(**data), written):
        assert repr(pickle.loads(pickle.dumps(value))) == repr(value)


def test_arrays_have_the_scores_of_their_files(run: unet_ddp.TrainedRun) -> None:
    expected = unet_ddp.evaluate(
        run, run.path.parent / "imgs", run.path.parent / "masks", device="cpu"
    )
    images, masks = arrays(run.path.parent)
    found = unet_ddp.evaluate(run, images, masks, device="cpu")
    assert (found.dice, found.classes, found.intervals) == (
        expected.dice,
        expected.classes,
        expected.intervals,
    )
    assert [*found.per_image] == [str(row) for row in range(10)]
    assert "scored: 10 images in the argument images, at their own size" in found.text
    rows = [*zip(expected.per_image, images, masks, strict=True)]
    assert unet_ddp.evaluate(run, rows, device="cpu").per_image == expected.per_image
    better = unet_ddp.evaluate(run, images, masks, threshold=expected.best_threshold, device="cpu")
    assert better.dice >= expected.dice


def test_without_images_the_validation_images_are_scored(run: unet_ddp.TrainedRun) -> None:
    result = unet_ddp.evaluate(run.path / "best.pt", device="cpu")
    assert result.images == 1 and "1 image of its run's validation set" in result.text
    assert result.intervals == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"masks": "masks"}, "--images and --masks: use both or neither"),
        ({"images": [np.zeros((8, 8, 3), np.uint8)], "masks": []}, "images has 1 item"),
        ({"images": "nowhere", "masks": "nowhere"}, "nowhere"),
        ({"model": "nowhere.pt"}, "nowhere.pt: checkpoint not found"),
        ({"threshold": 2.0}, "--threshold 2.0: must be above 0 and below 1"),
        ({"threshold": "half"}, "--threshold half: expected a number"),
        ({"workers": -1}, "--workers -1: must be 0 or more"),
        ({"precision": "half"}, "--precision half: expected auto or float32; see help(unet_ddp.evaluate)"),
        ({"tolerance": [1, 2]}, "tolerance: a list of 2 values; give one"),
        ({"model": object()}, "model: an object of type object; give"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_line(
    run: unet_ddp.TrainedRun, arguments: dict[str, Any], said: str
) -> None:
    check_refused(unet_ddp.evaluate, said, **{"model": run, "device": "cpu", **arguments})


def test_a_data_set_is_checked(run: unet_ddp.TrainedRun) -> None:
    folder = run.path.parent
    argv = ["--images", str(folder / "imgs"), "--masks", str(folder / "masks"), "--validation=20"]
    status, out, _ = call_main("unet_ddp.commands.doctor", argv, ".")
    found = unet_ddp.check(folder / "imgs", folder / "masks", validation=20)
    assert status == 0 and str(found) == out.rstrip("\n")
    assert found.is_fit and (found.training, found.validation) == (8, 2)
    assert found.sizes == {(24, 32): 10}
    assert [each.value for each in found.classes] == ["0", "255"]
    assert math.isclose(sum(each.training for each in found.classes), 1)
    assert found.classes[1].balancing_weight > found.classes[0].balancing_weight


def test_what_is_wrong_with_data_is_in_the_result(run: unet_ddp.TrainedRun) -> None:
    images, masks = arrays(run.path.parent)
    masks[3] = masks[3][:5]
    found = unet_ddp.check(images, masks)
    assert not found.is_fit and found.training + found.validation == 10
    (problem,) = found.problems
    assert problem.startswith("<images+masks>/3/mask.npy is 32x5, its image 32x24; resize one")
    assert "unfit to train: 1 problem" in found.text
    with pytest.raises(unet_ddp.UserError, match="did you mean"):
        unet_ddp.check(images, masks, validations=3)


@pytest.mark.parametrize("name", ["epochs", "e", "lr", "learning_rate", "amp", "width"])
def test_a_setting_that_is_not_about_data_is_named(name: str) -> None:
    """As it was given: the line was of flags, and of a command's help."""
    with pytest.raises(unet_ddp.UserError) as caught:
        unet_ddp.check("imgs", "masks", **{name: 1})
    assert str(caught.value).startswith(f"{name}: check() takes the settings of train() that are")
    with pytest.raises(unet_ddp.UserError, match=r"expected .*; see help\(unet_ddp\.check\)$"):
        unet_ddp.check("imgs", "masks", validation="many")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"whole": "yes"}, "whole: 'yes'; expected True or False"),
        ({"tolerance": 2}, "--tolerance 2.0: must be 0 or more and at most 1"),
        (
            {"precision": "half"},
            "--precision half: expected float32, float16 or int8; see help(unet_ddp.export)",
        ),
        ({"path": "a.pt"}, "a.pt: the name must end in .onnx"),
        ({"model": "-m"}, "-m: checkpoint not found"),
    ],
)
def test_a_mistake_in_an_export_is_a_line(
    run: unet_ddp.TrainedRun, arguments: dict[str, Any], said: str
) -> None:
    check_refused(unet_ddp.export, said, **{"model": run, "path": "m.onnx", **arguments})


@pytest.mark.usefixtures("traced_once")
def test_a_network_is_exported(run: unet_ddp.TrainedRun, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    images, masks = arrays(run.path.parent)
    write_model(tmp_path / "best.pt", Labels((0, 255)))
    run, path = unet_ddp.TrainedRun(tmp_path), tmp_path / "a.onnx"
    result = unet_ddp.export(run, path, images=images, masks=masks, runtime="onnxruntime")
    assert result.path == path and path.is_file()
    scores = result.runtimes["onnxruntime"]
    assert scores.is_used and scores.checkpoint_dice - scores.dice <= 0.002
    assert scores.equal_pixels > 0.99 and scores.images_per_second > 0
    assert f"onnxruntime: Dice {scores.dice:.4f}" in str(result)
    with pytest.raises(unet_ddp.UserError, match="already exists; use --overwrite"):
        unet_ddp.export(run, path, whole=True)
