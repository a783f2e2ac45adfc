"""The demo set of numbered nuclei."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.ranks import call_main
from unet_ddp.data.matching import find_pairs
from unet_ddp.errors import UserError
from unet_ddp.extras.demo_set.cells import draw_nuclei
from unet_ddp.extras.demo_set.draw import write_demo


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo(tmp_path_factory.mktemp("demo") / "cells", "cells")


def read_masks(folder: Path) -> list[np.ndarray]:
    return [np.asarray(Image.open(path)) for path in sorted((folder / "masks").iterdir())]


def test_60_grey_images_with_masks_and_4_without(folder: Path) -> None:
    pairs = find_pairs(folder / "imgs", folder / "masks")
    assert len(pairs) == 60 and len([*(folder / "unseen").iterdir()]) == 4
    for pair in pairs:
        with Image.open(pair.image) as image, Image.open(pair.mask) as mask:
            assert (image.mode, image.size, mask.size) == ("L", (128, 96), (128, 96))
            assert mask.mode == "I;16"


def test_nuclei_are_numbered_without_gaps_and_each_is_one_area(folder: Path) -> None:
    for mask in read_masks(folder):
        numbers = np.unique(mask)
        assert numbers.tolist() == [*range(len(numbers))] and len(numbers) > 5
        for number in numbers[1:]:
            parts, _ = cv2.connectedComponents((mask == number).astype(np.uint8))
            assert parts == 2  # with the background
            assert (mask == number).sum() >= 25


def test_many_nuclei_touch_and_are_brighter_than_the_background(folder: Path) -> None:
    touching = total = 0
    for mask in read_masks(folder):
        pairs = {
            frozenset(pair)
            for one, other in ((mask[1:], mask[:-1]), (mask[:, 1:], mask[:, :-1]))
            for pair in zip(one.ravel().tolist(), other.ravel().tolist(), strict=True)
            if pair[0] != pair[1] and 0 not in pair
        }
        touching += len(frozenset().union(*pairs)) if pairs else 0
        total += int(mask.max())
    assert touching > total / 3
    for path in sorted((folder / "imgs").iterdir())[:8]:
        pixels = np.asarray(Image.open(path)).astype(float)
        inside = np.asarray(Image.open(folder / "masks" / path.name)) > 0
        assert pixels[inside].mean() > 2 * pixels[~inside].mean()
        assert pixels[~inside].std() > 3  # the background is not of one colour


def test_drawn_again_each_file_has_the_same_bits(folder: Path, tmp_path: Path) -> None:
    names = sorted(path.relative_to(folder) for path in folder.rglob("*.png"))
    assert len({(folder / name).read_bytes() for name in names}) == len(names) == 124
    for number in range(0, 60, 7):
        for kind, picture in zip(("imgs", "masks"), draw_nuclei(number), strict=True):
            picture.save(tmp_path / "again.png")
            drawn = folder / kind / f"cells{number:02}.png"
            assert (tmp_path / "again.png").read_bytes() == drawn.read_bytes()


def test_the_doctor_knows_the_objects(folder: Path) -> None:
    flags = ["doctor", "--images", str(folder / "imgs"), "--masks", str(folder / "masks")]
    status, out, _ = call_main("unet_ddp.__main__", flags, str(folder))
    assert status == 2 and out.startswith("numbered objects: add --instances"), out
    status, out, _ = call_main("unet_ddp.__main__", [*flags, "--instances"], str(folder))
    assert status == 0 and out.endswith("ok: ready to train\n"), out


def test_one_folder_has_one_kind(folder: Path, tmp_path: Path) -> None:
    assert write_demo(folder, "cells") == folder
    assert write_demo(folder) == folder
    with pytest.raises(UserError, match="contains another demo set, not leaves; use another f"):
        write_demo(folder, "leaves")
    (tmp_path / "README.txt").write_text("notes of a user")
    with pytest.raises(UserError, match=r"README\.txt: not of the demo set; use another folder"):
        write_demo(tmp_path)
