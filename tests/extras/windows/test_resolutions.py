"""Windows of scenes at one ground resolution: the network sees of each what it would see of the whole scene."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import data_flags
from tests.extras.windows.scenes import TILED, check, config_of, draw_scene, find_windows
from tests.extras.windows.test_pairs import count, make_network
from tests.extras.windows.test_runs import run
from tests.maps import at, write_map
from tests.test_resume import FLAGS
from unet_ddp.checks.check import prepare_data
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.pairs import Pair
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import read_mask
from unet_ddp.data.readers.resize import resize_area, resize_nearest
from unet_ddp.extras.windows.pairs import WindowPairs, with_context
from unet_ddp.extras.windows.paths import split_window

METRES = (0.25, 0.5, 1.0, 0.5)
"""Of a pixel of each scene."""


def write_scenes(folder: Path, *metres: float) -> Path:
    """Scenes a, b, … of 96 m by 128 m, far from each other, in pixels of so many metres."""
    for k, side in enumerate(metres):
        image, mask = draw_scene(k, round(96 / side), round(128 / side))
        for kind, pixels in (("imgs", image), ("masks", mask)):
            place = at(side, (500_000.0 + 5_000 * k, 5_000_000.0))
            write_map(folder / kind / f"{'abcdefgh'[k]}.tif", pixels, place, **TILED)
    return folder


def expect(pair: Pair, metres: float) -> tuple[np.ndarray, np.ndarray]:
    """The image and mask of a window, cut from the whole files and then reduced to pixels of so many metres."""
    file, window = split_window(pair.image)
    scene = "abcdefgh".index(file.name[0])
    scale = METRES[scene] / metres
    size = round(window.height * scale), round(window.width * scale)
    image, mask = (
        each[window.rows, window.columns]
        for each in draw_scene(scene, *(round(side / METRES[scene]) for side in (96, 128)))
    )
    return resize_area(image, size), resize_nearest(mask, size)


def test_training_and_validation_see_windows_at_the_ground_resolution(tmp_path: Path) -> None:
    """Also those that training moves: image and mask are of the same place, and counted by the size they get."""
    folder = write_scenes(tmp_path, *METRES)
    config = config_of(folder, window=64, ground_resolution=1.0, validation=25)
    data = prepare_data(config, seed=1, parts=DATA_PARTS)
    training = SegmentationDataset(
        data.split.training, data.labels, data.format, scale=1.0, draw=data.draw
    )
    seen = set()
    for epoch in range(3):
        for index in range(len(training)):
            sample = training[epoch, index]
            assert not isinstance(sample, Exception), sample
            assert data.draw is not None
            pair = training.pairs.to_read(data.draw(epoch, index)[0])
            image, mask = expect(pair, 1.0)
            np.testing.assert_array_equal(sample.image.numpy(), image)
            np.testing.assert_array_equal(sample.mask.numpy(), mask)
            seen.add(split_window(pair.image)[0].name)
    scored = SegmentationDataset(data.split.validation, data.labels, data.format, scale=1.0)
    for index in range(len(scored)):
        sample = scored[0, index]
        assert not isinstance(sample, Exception), sample
        pair = scored.pairs.to_read(index)
        image, _ = expect(pair, 1.0)
        np.testing.assert_array_equal(sample.image.numpy(), image)
        seen.add(split_window(pair.image)[0].name)
    assert len(seen) == len(METRES)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_windows_of_several_resolutions_are_scored_as_their_scenes_are(
    tmp_path: Path, scale: float
) -> None:
    folder = write_scenes(tmp_path, *METRES)
    how = {"window": 64, "ground_resolution": 1.0, "scale": scale}
    windows, _ = find_windows(folder, **how)
    scored = WindowPairs(with_context(pair, config_of(folder, **how)) for pair in windows)
    assert len(scored) > len(METRES)
    form = ImageFormat(3, ground_resolution=1.0)
    whole = count(find_pairs(folder / "imgs", folder / "masks"), make_network(), scale, form)
    assert whole.min() > 100  # each answer occurs
    np.testing.assert_array_equal(count(scored, make_network(), scale, form), whole)


def test_pixels_without_data_are_ignored_where_they_lie_at_the_ground_resolution(
    tmp_path: Path,
) -> None:
    pixels, mask = draw_scene(3, 128, 128)
    pixels[40:80, 60:100] = 0
    write_map(tmp_path / "imgs" / "a.tif", pixels, nodata=0, **TILED)
    write_map(tmp_path / "masks" / "a.tif", mask, **TILED)
    config = config_of(tmp_path, window=128, ground_resolution=1.0, validation=0)
    data = prepare_data(config, seed=1, parts=DATA_PARTS)
    sample = SegmentationDataset(data.split.training, data.labels, data.format, scale=1.0)[0, 0]
    assert not isinstance(sample, Exception), sample
    expected = np.zeros((64, 64), bool)
    expected[20:40, 30:50] = True
    np.testing.assert_array_equal(sample.mask.numpy() == IGNORE_ID, expected)


@pytest.mark.parametrize(
    ("flags", "scenes"),
    [("", (0.5, 0.5, 0.5)), ("--ground-resolution 0.5", (0.25, 0.5, 0.5))],
    ids=["of the training scenes", "wanted"],
)
def test_evaluate_scores_the_masks_of_predict(
    tmp_path: Path, flags: str, scenes: tuple[float, ...]
) -> None:
    """On scenes of finer pixels than the network's: windows and whole scenes are both brought to it."""
    folder, other = write_scenes(tmp_path / "a", *scenes), write_scenes(tmp_path / "b", 0.25, 0.5)
    argv = [*data_flags(folder), *FLAGS, "--window", "64", *flags.split(), "--batch-size", "4"]
    status, _, err = run("train", tmp_path, *argv, "--epochs", "1")
    assert status == 0, err
    model = ["--model", str(tmp_path / "checkpoints"), "--device", "cpu"]
    status, _, err = run("evaluate", tmp_path, *model, *data_flags(other), "--output", "scores")
    assert status == 0, err
    status, _, err = run("predict", tmp_path, str(other / "imgs"), *model, "--output", "masks")
    assert status == 0, err
    found = json.loads((tmp_path / "scores" / "scores.json").read_text())["classes"]
    table = np.zeros((2, 2), np.int64)
    for name in "ab":
        truth = read_mask(other / "masks" / f"{name}.tif")
        np.add.at(table, (truth, read_mask(tmp_path / "masks" / f"{name}_mask.tif")), 1)
    dice = 2 * table.diagonal() / (table.sum(axis=0) + table.sum(axis=1))
    assert [each["dice"] for each in found] == dice.tolist()
    assert table.min() > 100


def test_evaluate_names_no_flag_for_scenes_that_are_too_coarse(tmp_path: Path) -> None:
    """Of windows and of whole scenes: predict.py has --ground-resolution, evaluate and export have not."""
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    folder, other = write_scenes(tmp_path / "a", 0.5, 0.5), write_scenes(tmp_path / "b", 1.0)
    for name, window in (("cut", ["--window", "64"]), ("whole", [])):
        argv = [*data_flags(folder), *FLAGS, *window, "--epochs", "1", "--exp-name", name]
        status, _, err = run("train", tmp_path, *argv, "--validation", "50", "--batch-size", "1")
        assert status == 0, err
        model = ["--model", str(tmp_path / "checkpoints" / name), "--device", "cpu"]
        export = ["export", model[1] + "/best.pt", str(tmp_path / "a.onnx")]
        for argv in (["evaluate", *model], export):
            status, _, err = run(argv[0], tmp_path, *argv[1:], *data_flags(other))
            assert (status, err.strip().splitlines()[-1]) == (
                2,
                f"error: {other}/imgs/a.tif: pixels of 1 m on the ground, the network takes 0.5 m; "
                "images are never enlarged; give finer images",
            )
        status, _, err = run("predict", tmp_path, str(other / "imgs"), *model)
        assert "use --ground-resolution 1 or more, or give finer images" in err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "{0}/imgs/a.tif has pixels of 0.25 m on the ground, {0}/imgs/b.tif of 0.5 m; bring all to one with"),
        ({"ground_resolution": 0.25}, "{0}/imgs/b.tif: pixels of 0.5 m on the ground, the network takes 0.25 m;"),
    ],
)  # fmt: skip
def test_scenes_that_do_not_fit_are_named_and_not_their_windows(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    folder = write_scenes(tmp_path, 0.25, 0.5)
    _, report = check(folder, window=64, **settings)
    assert [problem[: len(said.format(folder))] for problem in report.problems] == [
        said.format(folder)
    ]
