"""The windows that training draws."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.extras.windows.scenes import config_of, draw_scene, find_windows, write_scenes
from unet_ddp.checks.check import prepare_data
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.data.dataset import PreparedData, Sample, SegmentationDataset
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.samplers import Draw
from unet_ddp.extras.windows.draw import DrawnWindows, draw_window
from unet_ddp.extras.windows.paths import Window, split_window

SIZE = 64


def draw_of(pairs: Pairs, seed: int) -> Draw:
    return partial(draw_window, size=SIZE, count=len(pairs), seed=seed, inner=None)


def drawn(pairs: Pairs, draw: Draw, epoch: int) -> list[tuple[str, Window]]:
    """The windows of a pass, in the order of the grid's."""
    found = []
    for index in range(len(pairs)):
        own, _ = draw(epoch, index)
        file, window = split_window(pairs.to_read(own).image)
        found.append((file.name, window))
    return found


@pytest.fixture
def windows(tmp_path: Path) -> DrawnWindows:
    found, _ = find_windows(write_scenes(tmp_path, (200, 330), (128, 96)), window=SIZE)
    training = DrawnWindows(found, SIZE)
    training.share()
    return training


def test_each_window_of_the_grid_is_drawn_once_in_a_pass_near_its_place(
    windows: DrawnWindows,
) -> None:
    draw = draw_of(windows, 1)
    moves = []
    for index, (name, window) in enumerate(drawn(windows, draw, 0)):
        file, cell = split_window(windows[index].image)
        assert file.name == name and window[2:] == (SIZE, SIZE)
        off = np.array(window[:2]) - np.array(cell[:2])
        assert (np.abs(off - (np.array(cell[2:]) - SIZE) // 2) <= SIZE // 2 + 32).all()
        moves.append(tuple(off.tolist()))
    assert len({*moves}) > 8


def test_draws_depend_on_seed_epoch_and_index_alone(windows: DrawnWindows) -> None:
    draw = draw_of(windows, 1)
    assert drawn(windows, draw, 3) == drawn(windows, draw, 3)
    assert drawn(windows, draw, 3) != drawn(windows, draw, 4)
    assert drawn(windows, draw, 3) != drawn(windows, draw_of(windows, 2), 3)


def count_draws(pairs: Iterable[Pair], size: tuple[int, int], epochs: int) -> np.ndarray:
    """How often each pixel of a scene (H, W) is drawn in some passes."""
    training = DrawnWindows(pairs, SIZE)
    training.share()
    draw = draw_of(training, 1)
    counts = np.zeros(size)
    for epoch in range(epochs):
        for _, window in drawn(training, draw, epoch):
            counts[window.rows, window.columns] += 1
    return counts


def test_all_places_of_a_scene_are_drawn_alike(tmp_path: Path) -> None:
    """But near its edges, as with any crops."""
    found, _ = find_windows(write_scenes(tmp_path, (320, 320)), window=SIZE, validation=0)
    counts = count_draws(found, (320, 320), epochs=200)
    inside = counts[SIZE:-SIZE, SIZE:-SIZE] / 200
    assert abs(inside.mean() - 1) < 0.05 and inside.min() > 0.7 and inside.max() < 1.3


def test_no_window_reaches_into_one_that_is_not_trained_on(tmp_path: Path) -> None:
    """One that could not be read, has no data, or is near those that validate."""
    found, _ = find_windows(write_scenes(tmp_path, (256, 256)), window=SIZE, validation=0)
    rest = [pair for pair in found if split_window(pair.image)[1][:2] not in ((64, 64), (192, 192))]
    counts = count_draws(rest, (256, 256), epochs=60)
    assert not counts[64:128, 64:128].any() and not counts[192:, 192:].any()
    counts[64:128, 64:128] = counts[192:, 192:] = 1
    assert counts.all()


def prepare(folder: Path, **settings: object) -> PreparedData:
    config = config_of(folder, window=SIZE, **settings)
    return prepare_data(config, seed=1, parts=DATA_PARTS)


def read_training(data: PreparedData) -> SegmentationDataset:
    return SegmentationDataset(
        data.split.training, data.labels, data.format, scale=1.0, draw=data.draw
    )


def test_a_sample_is_the_scene_there(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path, (256, 256), (256, 256))
    data = prepare(folder, validation=0)
    assert data.crop_size == (SIZE, SIZE) and data.draw is not None
    scenes = {f"{name}.tif": draw_scene(k, 256, 256) for k, name in enumerate("ab")}
    dataset = read_training(data)
    for index in range(0, len(dataset), 5):
        sample = dataset[2, index]
        assert isinstance(sample, Sample)
        file, window = split_window(data.split.training.to_read(data.draw(2, index)[0]).image)
        image, mask = scenes[file.name]
        np.testing.assert_array_equal(sample.image, image[window.rows, window.columns])
        np.testing.assert_array_equal(sample.mask, mask[window.rows, window.columns])
        assert sample.mask.shape == (SIZE, SIZE)


def test_of_one_ground_resolution_a_crop_has_the_pixels_of_a_window(tmp_path: Path) -> None:
    """Scenes of 0.5 m at 1 m: half as many in each direction, and none is padding."""
    folder = write_scenes(tmp_path, (256, 256), (256, 256))
    assert prepare(folder, validation=0, ground_resolution=1.0).crop_size == (SIZE // 2, SIZE // 2)


def test_a_crop_has_at_least_the_pixels_of_other_crops(tmp_path: Path) -> None:
    """Of windows that are smaller at the network's scale, the rest is padding."""
    folder = write_scenes(tmp_path, (256, 256), (256, 256))
    data = prepare(folder, validation=0, scale=0.2)
    assert data.crop_size == (16, 16)


def test_a_window_drawn_by_class_has_it(tmp_path: Path) -> None:
    """With --balance, some windows are drawn for a class that one in 32 has, and are not moved from it."""
    folder = write_scenes(tmp_path, (256, 256), (256, 256))
    from tests.extras.windows.scenes import TILED
    from tests.maps import write_map

    for k, name in enumerate("ab"):
        _, mask = draw_scene(k, 256, 256)
        if name == "a":
            mask[130:140, 130:140] = 2
        write_map(folder / "masks" / f"{name}.tif", mask, **TILED)
    data = prepare(folder, validation=0, balance=100.0)
    assert data.draw is not None and data.cut is not None
    dataset, seen = read_training(data), []
    for index in range(len(dataset)):
        _, drawn_for = data.draw(0, index)
        sample = dataset[0, index]
        assert isinstance(sample, Sample) and (sample.mask == drawn_for).any()
        seen.append(drawn_for)
    assert seen.count(2) > 4


def test_a_small_scene_is_padded_as_a_crop_is(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path, (256, 256), (40, 300))
    data = prepare(folder, validation=0)
    shapes = set()
    dataset = read_training(data)
    for index in range(len(dataset)):
        sample = dataset[0, index]
        assert isinstance(sample, Sample)
        shapes.add(tuple(sample.mask.shape))
    assert shapes == {(64, 64), (40, 64)} and data.crop_size == (64, 64)


def test_the_memory_for_windows_that_validate_is_that_at_the_scale(tmp_path: Path) -> None:
    """With their surroundings they are larger than those that train; all at a quarter of the pixels."""
    folder = write_scenes(tmp_path, (512, 512), (512, 512))
    found = {scale: prepare(folder, validation=50, scale=scale) for scale in (1.0, 0.5)}
    for scale, data in found.items():
        sides = [split_window(pair.image)[1][2:] for pair in data.split.validation]
        largest = max(height * width for height, width in sides)
        assert data.most_pixels == largest * scale**2 > SIZE**2
