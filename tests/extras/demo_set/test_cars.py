"""The built-in demo set of cars on a turntable."""

from __future__ import annotations

import hashlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from unet_ddp.data.groups import group_names
from unet_ddp.data.matching import find_pairs
from unet_ddp.extras.demo_set.cars import draw_views
from unet_ddp.extras.demo_set.draw import write_demo

Views = list[tuple[Image.Image, Image.Image]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo(tmp_path_factory.mktemp("demo"), "cars")


@pytest.fixture(scope="module")
def cars(folder: Path) -> list[Views]:
    """Images and masks of four cars, as their files have them."""
    files = [sorted((folder / name).iterdir())[:64] for name in ("imgs", "masks")]
    views = [(read(image), read(mask)) for image, mask in zip(*files, strict=True)]
    return [views[first : first + 16] for first in range(0, 64, 16)]


def read(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.copy()


def read_mask(mask: Image.Image) -> np.ndarray:
    return np.asarray(mask).astype(np.uint8)


def test_it_is_carvana_in_small(folder: Path) -> None:
    """160 views of 10 cars, which stay together in a split; masks of 0 and 1, seen as black and white."""
    pairs = find_pairs(folder / "imgs", folder / "masks")
    groups = group_names(pairs, None)
    assert len(pairs) == 160 and len(set(groups.values())) == 10
    assert all(groups[name] == name.partition("_")[0] for name in groups)
    assert len([*(folder / "unseen").iterdir()]) == 4
    for pair in pairs:
        assert pair.mask.name == f"{pair.name}_mask.gif"
        with Image.open(pair.mask) as mask, Image.open(pair.image) as image:
            assert image.size == mask.size == (240, 160) and image.mode == "RGB"
            assert mask.getpalette()[:6] == [0, 0, 0, 255, 255, 255]  # type: ignore[index]
            assert set(np.unique(mask)) == {0, 1}


def test_a_car_drawn_again_has_the_same_bits(folder: Path, tmp_path: Path) -> None:
    for view, (image, mask) in enumerate(draw_views(7)):
        for name, picture in (
            (f"imgs/car07_{view:02}.jpg", image),
            (f"masks/car07_{view:02}_mask.gif", mask),
        ):
            picture.save(tmp_path / Path(name).name, quality=92)
            assert (tmp_path / Path(name).name).read_bytes() == (folder / name).read_bytes()


def test_a_car_is_one_area_inside_the_picture_and_turns(cars: list[Views]) -> None:
    for views in cars:
        widths = []
        for _, mask in views:
            inside = read_mask(mask)
            count, _ = cv2.connectedComponents(inside)
            assert count == 2  # with the background
            edge = np.concatenate([inside[0], inside[-1], inside[:, 0], inside[:, -1]])
            assert not edge.any() and 0.1 < inside.mean() < 0.4
            widths.append(int(inside.any(axis=0).sum()))
        assert max(widths) > 1.5 * min(widths)  # from the side, and from the front
        assert len({mask.tobytes() for _, mask in views}) == len(views) == 16


def test_the_mask_is_where_views_differ(cars: list[Views]) -> None:
    """The studio stands still: outside of all masks, and of the shadows on the table, only noise changes."""
    for views in cars:
        pixels = np.stack([np.asarray(image, float) for image, _ in views])
        masks = np.stack([read_mask(mask) for _, mask in views])
        change = pixels.std(axis=0).mean(axis=-1)
        everywhere = masks.any(axis=0)
        top = np.flatnonzero(everywhere.any(axis=1))[0]
        assert np.median(change[everywhere]) > 4 * np.median(change[~everywhere])
        assert change[:top].max() < 10  # noise of 3


def test_no_brightness_tells_cars_from_the_studio(cars: list[Views]) -> None:
    """The best limit for each image has a mean Dice below 0.9; a small network reaches 0.98."""
    best = []
    for image, mask in (view for views in cars for view in views):
        grey, inside = np.asarray(image.convert("L")), read_mask(mask) > 0
        found = [
            side(grey, limit) for limit in range(20, 250, 10) for side in (np.less, np.greater)
        ]
        best.append(max(2 * (each & inside).sum() / (each.sum() + inside.sum()) for each in found))
    assert np.mean(best) < 0.9


def test_masks_are_those_of_version_1(folder: Path) -> None:
    """The same set gives the figures of the README in later versions. Letters depend on Pillow."""
    masks = hashlib.sha256()
    for path in sorted((folder / "masks").iterdir()):
        masks.update(read_mask(read(path)).tobytes())
    assert masks.hexdigest() == "3b5f4aad62c86f7f857d0fd214f31f9d09d5c9d8d395bd988e2cc25094a895c7"
