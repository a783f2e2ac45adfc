"""Which images of a public data set are trained on, which choose the network, and which are the test.

Each list is a function of file names alone; no image decides where it belongs.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from unet_ddp.errors import UserError

TEST, VALIDATION = 15, 10  # percent of the names, or of the cars
Pairs = list[tuple[Path, Path]]
"""Images and their masks."""


class Sets(NamedTuple):
    """Three lists that share no image."""

    training: Pairs
    validation: Pairs
    test: Pairs

    def check(self) -> None:
        """Raise a UserError if a list is empty, or an image is in two of them."""
        names = [{image.name for image, _ in pairs} for pairs in self]
        for field, found in zip(self._fields, names, strict=True):
            if not found:
                raise UserError(f"{field}: no image; the protocol needs more of the data set")
        twice = names[0] & names[1] | names[2] & (names[0] | names[1])
        if twice:
            raise UserError(f"{min(twice)}: in two of training, validation and test")

    def write(self, path: Path) -> None:
        """Write the list for train.py, without the test."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("image", "mask", "split"))
            writer.writerows((*pair, "training") for pair in self.training)
            writer.writerows((*pair, "validation") for pair in self.validation)


def find_camvid(data: Path) -> Sets:
    """Return the lists of SegNet's selection of CamVid: 367, 101 and 233 frames."""
    folder = data / "CamVid"

    def read(side: str) -> Pairs:
        lines = (folder / f"{side}.txt").read_text(encoding="utf-8").splitlines()
        names = [[Path(word).name for word in line.split()] for line in lines if line.strip()]
        return [(folder / side / image, folder / f"{side}annot" / mask) for image, mask in names]

    return Sets(read("train"), read("val"), read("test"))


def find_carvana(data: Path, turn: int) -> Sets:
    """Return lists of whole cars, in the order of their ids' hashes; in each turn others are the test."""
    cars: dict[str, Pairs] = {}
    for image in sorted((data / "imgs").iterdir()):
        mask = next((data / "masks").glob(f"{image.stem}[._]*"), None)
        if mask is None:
            raise UserError(f"{image}: no mask in {data / 'masks'}")
        cars.setdefault(image.name.partition("_")[0], []).append((image, mask))
    order = sorted(cars, key=_hash)
    test, validation = (max(1, round(len(order) * share / 100)) for share in (TEST, VALIDATION))
    order = order[turn * test % len(order) :] + order[: turn * test % len(order)]
    parts = order[test + validation :], order[test : test + validation], order[:test]
    return Sets(*([pair for car in part for pair in cars[car]] for part in parts))


def find_dsb2018(data: Path, names: Path, masks: Path) -> Sets:
    """Return the lists of the images in `names`; numbered masks are written to the folder `masks`.

    Raises:
        UserError: there is no image of a name.
    """
    folder = data / "stage1_train"
    chosen = sorted(set(names.read_text(encoding="utf-8").split()))
    missing = [name for name in chosen if not (folder / name).is_dir()]
    if missing:
        raise UserError(
            f"{names}: {missing[0]} is not in {folder}; neither are {len(missing) - 1} more"
        )
    masks.mkdir(parents=True, exist_ok=True)
    sides: dict[int, Pairs] = {0: [], 1: [], 2: []}
    for name in chosen:
        mask = masks / f"{name}.png"
        if not mask.exists():
            number_objects(sorted((folder / name / "masks").iterdir()), mask)
        sides[_choose_side(name)].append((folder / name / "images" / mask.name, mask))
    return Sets(*sides.values())


def find_wbc(data: Path) -> Sets:
    """Return the lists of one of the two folders of white blood cells, which have an x.bmp and an x.png each."""
    sides: dict[int, Pairs] = {0: [], 1: [], 2: []}
    for image in sorted(data.glob("*.bmp")):
        sides[_choose_side(image.stem)].append((image, image.with_suffix(".png")))
    return Sets(*sides.values())


def _choose_side(name: str) -> int:
    """Return 0, 1 or 2: whether an image is for training, validation or test, by the hash of its name."""
    share = int(_hash(name)[:8], 16) % 100
    return 2 if share < TEST else int(share < TEST + VALIDATION)


def number_objects(files: Iterable[Path], path: Path) -> None:
    """Write one mask, in which each file's foreground has the next number."""
    masks = [np.asarray(Image.open(file).convert("L")) > 0 for file in files]
    numbers = np.zeros(masks[0].shape, np.uint16)
    for number, mask in enumerate(masks, start=1):
        numbers[mask] = number
    Image.fromarray(numbers).save(path)


def is_fluorescence(image: Path) -> bool:
    """Return whether an image is grey, with more dark pixels than bright ones."""
    with Image.open(image) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    return bool((pixels == pixels[..., :1]).all() and np.median(pixels) < 128)


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
