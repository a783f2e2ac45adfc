"""Catalogue of the data that people come with, and the message that each must get.

Each case changes a good set of six pairs and may add flags. Status 2: one `error:` line that
contains these texts, and nothing is trained. Status 0: it trains, and prints these texts before.
The tests run it on one and on two ranks; the table in docs/catalogue.md is written from it:

    python -m tests.checks.catalogue
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tifffile
from PIL import Image

from tests.conftest import data_flags, make_pair, make_set

PAGE = Path(__file__).parents[2] / "docs" / "catalogue.md"
FLAGS = [
    "--width", "2", "--epochs", "1", "--batch-size", "1", "--workers", "0", "--augmentation", "none",
    "--stop-after", "1",
]  # fmt: skip
Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """One kind of data."""

    name: str
    make: Callable[[Path], object]
    status: int
    says: tuple[str, ...]
    flags: list[str] = field(default_factory=list)
    """{} stands for the folder."""
    during: Callable[[Path], object] | None = None
    """Change between the check of the files and the first step."""

    def argv(self, folder: Path) -> list[str]:
        """Return the command line."""
        given = [flag.replace("{}", str(folder)) for flag in self.flags]
        data = [] if "--list" in given else data_flags(folder)
        return [*data, *FLAGS, *given]


# -- what is done to the set ---------------------------------------------------------------


def image(folder: Path, name: str = "cx") -> Path:
    return folder / "imgs" / f"{name}.png"


def mask(folder: Path, name: str = "cx") -> Path:
    return folder / "masks" / f"{name}.png"


def pixels(path: Path) -> Array:
    with Image.open(path) as opened:
        return np.array(opened)


def each(folder: Path, side: str, change: Callable[[Path, Array], object]) -> None:
    """Replace every file of a side by what `change` writes."""
    for path in sorted((folder / side).iterdir()):
        array = pixels(path)
        path.unlink()
        change(path, array)


def as_format(side: str, ending: str, **how: object) -> Callable[[Path], None]:
    """Save all files of a side in another format."""
    return lambda folder: each(
        folder, side, lambda p, a: Image.fromarray(a).save(p.with_suffix(ending), **how)
    )


def as_tiff(dtype: str, bands: int = 1, **how: object) -> Callable[[Path], None]:
    """Save all images as TIFF of another type."""

    def change(path: Path, array: Array) -> None:
        values = array[..., :1].astype(np.float64)
        if dtype != "uint8":
            values = values * 7 - 300 * (dtype != "uint16")
        values = values.astype(dtype)
        stack = np.repeat(values, bands, axis=2)
        tifffile.imwrite(
            path.with_suffix(".tif"), stack[..., 0] if bands == 1 else stack,
            photometric="minisblack", **({"planarconfig": "contig"} if bands > 1 else {}), **how,
        )  # fmt: skip

    return lambda folder: each(folder, "imgs", change)


def in_two_scales(folder: Path) -> None:
    """Save images in floats of 0 to 255, and every second in those of 0 to 1."""
    as_tiff("uint8")(folder)
    for number, path in enumerate(sorted((folder / "imgs").iterdir())):
        tifffile.imwrite(path, tifffile.imread(path) / np.float32(1 + 254 * (number % 2)))


def photograph(shape: tuple[int, ...]) -> Array:
    """Return colours that differ from pixel to pixel."""
    drawn = np.random.default_rng(0).integers(1, 256, (*shape, 3))
    return drawn.astype(np.uint8)


def one_for_all(folder: Path) -> None:
    """Give all images one mask."""
    one = pixels(mask(folder))
    each(folder, "masks", lambda path, _: Image.fromarray(one).save(path))


def some_as_ones(folder: Path) -> None:
    """Write one mask as `unet-ddp import` does."""
    Image.fromarray(pixels(mask(folder)) // 255).save(mask(folder))


def masks_as(values: Callable[[Array], Array]) -> Callable[[Path], None]:
    """Give all masks other values."""
    return lambda folder: each(folder, "masks", lambda p, a: Image.fromarray(values(a)).save(p))


def two_pixels(values: Array) -> Array:
    """Return a mask of the same size and class, with one object of two pixels."""
    mask = np.zeros_like(values)
    mask[9, 9:11] = values.max()
    return mask


def cut(path: Path, share: float = 0.6) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def film(path: Path) -> None:
    frames = [Image.new("L", (32, 24), k) for k in (0, 90)]
    frames[0].save(path, save_all=True, append_images=frames[1:])


def replaced(path: Path, make: Callable[[Path], object], ending: str) -> None:
    path.unlink()
    make(path.with_suffix(ending))


def float_with(value: float) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        as_tiff("float32")(folder)
        path = folder / "imgs" / "cx.tif"
        array = tifffile.imread(path)
        array[3, 4] = value
        tifffile.imwrite(path, array)

    return make


def soft(array: Array) -> Array:
    """Return a mask with soft edges, as from antialiasing."""
    import cv2

    blurred: Array = cv2.GaussianBlur(array, (5, 5), 0.8)
    noise = np.random.default_rng(array.sum()).integers(0, 12, array.shape)
    return np.where(blurred > 127, np.maximum(blurred, 12) - noise, blurred + noise).astype(
        np.uint8
    )


def edged(array: Array) -> Array:
    """Return a mask in colour with some pixels between black and white."""
    edges = array.copy()
    edges[0, :3] = 64, 128, 191
    return np.repeat(edges[..., None], 3, axis=2)


def numbered(folder: Path, *, first: int = 0, dtype: type = np.uint8) -> None:
    """Give the masks squares with a number each, of which some were deleted.

    Numbers begin at 1 in each mask, or `first` later in each than in the one before.
    """
    for number, path in enumerate(sorted((folder / "masks").iterdir())):
        rng = np.random.default_rng(number)
        cells = np.arange(1, 49).reshape(6, 8)
        cells = np.where((cells > 25 + 4 * number) | (rng.random(cells.shape) < 0.2), 0, cells)
        cells = np.where(cells, cells + first * number, 0).repeat(4, 0).repeat(4, 1)
        side = rng.integers(3, 5, (2, 6, 8)).repeat(4, 1).repeat(4, 2)
        rows, columns = np.arange(24)[:, None] % 4, np.arange(32) % 4
        found = np.where((rows < side[0]) & (columns < side[1]), cells, 0)
        Image.fromarray(found.astype(dtype)).save(path)


def with_classes(folder: Path) -> None:
    """Give each mask two objects of one of three classes."""
    for number, path in enumerate(sorted((folder / "masks").iterdir())):
        found = (np.arange(32) // 8).astype(np.int32).clip(max=2)[None].repeat(24, 0)
        values = np.where(found > 0, (1 + number % 3) * 1_000_000 + found, 0)
        tifffile.imwrite(path.with_suffix(".tif"), values.astype(np.int32))
        path.unlink()


def striped(array: Array) -> Array:
    """Return a mask of three values, in stripes of eight pixels, as JPEG stores them."""
    return np.array([0, 128, 255], np.uint8)[np.arange(array.shape[1]) // 8 % 3][None].repeat(
        len(array), 0
    )


def per_class(folder: Path) -> None:
    """Move all masks to the folder of a class."""
    (folder / "car").mkdir()
    (folder / "masks").rename(folder / "car" / "car")
    (folder / "car").rename(folder / "masks")


def per_object(names: str, folder: Path) -> None:
    """Write two files for each mask, the upper and the lower part, by `names`."""
    for path in sorted((folder / "masks").iterdir()):
        mask = pixels(path)
        path.unlink()
        for number, part in enumerate(np.array_split(np.arange(len(mask)), 2)):
            target = folder / "masks" / names.format(path.stem, number)
            target.parent.mkdir(exist_ok=True)
            Image.fromarray(np.where(np.isin(np.arange(len(mask)), part)[:, None], mask, 0)).save(
                target
            )


def in_folders(folder: Path, change: Callable[[Array], Array] = lambda a: np.roll(a, 4, 0)) -> None:
    """Move all masks to the folder of a class; those of another class are `change`d."""
    per_class(folder)
    (folder / "masks" / "tree").mkdir()
    for path in (folder / "masks" / "car").iterdir():
        Image.fromarray(change(pixels(path))).save(folder / "masks" / "tree" / path.name)


def then(change: Callable[[Path], object]) -> Callable[[Path], None]:
    """Move masks to the folders of two classes that overlap, and change one."""

    def make(folder: Path) -> None:
        in_folders(folder)
        change(folder / "masks" / "tree" / "cx.png")

    return make


def with_void(path: Path, one: int, void: int) -> None:
    """Write a class's mask with this value in it, and void on the left."""
    mask = np.where(pixels(path) > 0, one, 0)
    mask[:, :4] = void
    Image.fromarray(mask.astype(np.uint8)).save(path)


def many_folders(path: Path) -> None:
    for number in range(14):
        shutil.copytree(path.parent, path.parents[1] / f"part{number}")


def as_pages(folder: Path) -> None:
    """Write masks with a page for each of two classes."""
    each(folder, "masks", lambda p, a: tifffile.imwrite(
        p.with_suffix(".tif"), np.stack([a, np.roll(a, 4, 0)]), photometric="minisblack"
    ))  # fmt: skip


def colours(array: Array) -> Array:
    return np.where(array[..., None] > 0, [255, 0, 0], [0, 0, 128]).astype(np.uint8)


def with_palette(path: Path, array: Array) -> None:
    picture = Image.fromarray((array > 0).astype(np.uint8))
    picture.putpalette([0, 0, 0, 224, 224, 192])
    picture.save(path)


def with_alpha(folder: Path) -> None:
    each(folder, "imgs", lambda p, a: Image.fromarray(np.dstack([a, a[..., 0]])).save(p))


def swapped_palette(path: Path) -> None:
    """Save the same picture with its two indices and colours exchanged."""
    picture = Image.fromarray(1 - pixels(path))
    picture.putpalette([224, 224, 192, 0, 0, 0])
    picture.save(path)


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def both(*makes: Callable[[Path], object]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for one in makes:
            one(folder)

    return make


def renamed(
    change: Callable[[str], str], sides: tuple[str, ...] = ("imgs", "masks")
) -> Callable[[Path], None]:
    """Rename all files of these sides; new names may be in folders."""

    def make(folder: Path) -> None:
        for side in sides:
            for path in sorted((folder / side).iterdir()):
                new = path.parent / change(path.name)
                new.parent.mkdir(parents=True, exist_ok=True)
                path.rename(new)

    return make


def listing(header: str = "image,mask,split", **changes: str) -> Callable[[Path], None]:
    """Write a list of all pairs, the last two for validation."""

    def make(folder: Path) -> None:
        names = sorted(path.stem for path in (folder / "imgs").iterdir())
        rows = [
            f"imgs/{changes.get(n, n)}.png,masks/{n}.png,{'val' if n in names[-2:] else 'train'}"
            for n in names
        ]
        (folder / "pairs.csv").write_text("\n".join([header, *rows]) + "\n")

    return make


def only_in_validation(folder: Path) -> None:
    listing()(folder)
    path = mask(folder, "fx")
    array = pixels(path)
    array[:6] = 99
    Image.fromarray(array).save(path)


def one_pixel(folder: Path) -> None:
    array = pixels(mask(folder))
    array[0, 0] = 77
    Image.fromarray(array).save(mask(folder))


def validation_set(folder: Path) -> None:
    for name in ("vx", "wx"):
        make_pair(folder / "val", name)


def huge(path: Path) -> None:
    Image.new("1", (13000, 13000)).save(path)


def turned_by_exif(folder: Path) -> None:
    """Save an upright mask, and an image on its side whose EXIF says so."""
    upright = pixels(image(folder))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    image(folder).unlink()
    Image.fromarray(np.rot90(upright)).save(folder / "imgs" / "cx.jpg", exif=exif, quality=95)


def numpy_arrays(folder: Path) -> None:
    for side in ("imgs", "masks"):
        each(folder, side, lambda p, a: np.save(p.with_suffix(".npy"), a))


def not_whole(folder: Path) -> None:
    each(folder, "masks", lambda p, a: tifffile.imwrite(p.with_suffix(".tif"), a / np.float32(510)))


CASES = [
    # files that can't be read
    Case("an empty file", lambda f: image(f).write_bytes(b""), 2, ("cx.png", "is empty (0 bytes)")),
    Case("a truncated JPEG", lambda f: replaced(image(f), lambda p: (Image.effect_noise((32, 24), 50).convert("RGB").save(p), cut(p)), ".jpg"), 2, ("cx.jpg", "corrupt or truncated")),
    Case("a truncated PNG", lambda f: cut(image(f)), 2, ("imgs/cx.png", "corrupt or truncated")),
    Case("a truncated mask", lambda f: mask(f).write_bytes(mask(f).read_bytes()[:60]), 2, ("masks/cx.png",)),
    Case("a web page named .jpg", lambda f: replaced(image(f), lambda p: p.write_text("<!DOCTYPE html><html>"), ".jpg"), 2, ("cx.jpg", "is a web page")),
    Case("text named .png", lambda f: image(f).write_text("not an image"), 2, ("cx.png", "not a readable image")),
    Case("an animated GIF as image", lambda f: replaced(image(f), film, ".gif"), 2, ("cx.gif", "several frames")),
    Case("an animated GIF as mask", lambda f: replaced(mask(f), film, ".gif"), 2, ("cx.gif", "several frames")),
    Case("a link to nowhere", lambda f: (image(f).unlink(), image(f).symlink_to(f / "gone.png")), 2, ("cx.png", "not found")),
    Case("a pipe named as a mask", lambda f: (mask(f).unlink(), os.mkfifo(mask(f))), 2, ("cx.png", "is a pipe")),
    Case("an image of 169 million pixels in 20 KB", lambda f: huge(image(f)), 2, ("cx.png", "13000x13000", "cut it into tiles")),
    Case("several bad files at once", lambda f: (cut(image(f)), image(f, "dx").write_bytes(b""), mask(f, "ex").write_text("?")), 2, ("cx.png", "dx.png", "ex.png")),
    Case("a bad file, skipped", lambda f: cut(image(f)), 0, ("skipped", "imgs/cx.png", "(1 of at most 1)", "4 images to train on, 1 to validate"), ["--skip-bad-files", "1"]),
    Case("two bad files, one may be skipped", lambda f: (cut(image(f)), cut(image(f, "dx"))), 2, ("cx.png", "dx.png"), ["--skip-bad-files", "1"]),
    Case("an image that vanishes after the check", lambda f: None, 2, ("x.png", "not found"), during=lambda f: [p.unlink() for p in (f / "imgs").iterdir()]),
    Case("a mask that gets another value after the check", lambda f: None, 2, ("x.png", "unknown mask value 77"), during=lambda f: masks_as(lambda a: np.where(a > 0, 77, 0).astype(np.uint8))(f)),
    Case("one line for a path with a line break", lambda f: (image(f).rename(f / "imgs" / "c\nx.png"), mask(f).rename(f / "masks" / "c\nx.png"), cut(f / "imgs" / "c\nx.png")), 2, ("c\\nx.png",)),
    # pairs
    Case("no images", lambda f: shutil.rmtree(f / "imgs") or (f / "imgs").mkdir(), 2, ("imgs", "contains no images")),
    Case("a microscope's own files", lambda f: [p.rename(p.with_suffix(".czi")) for p in (f / "imgs").iterdir()], 2, ("imgs", "contains no images", "a microscope's own format (.czi): export as TIFF")),
    Case("a folder that is missing", lambda f: shutil.rmtree(f / "masks"), 2, ("masks", "not found")),
    Case("an image without mask", lambda f: mask(f).unlink(), 2, ("cx.png", "no mask")),
    Case("five images without masks", lambda f: [mask(f, n).unlink() for n in ("ax", "bx", "cx", "dx", "ex")], 2, ("ax.png", "bx.png", "cx.png", "2 more", "doctor")),
    Case("two masks for an image", lambda f: Image.open(mask(f)).save(mask(f).with_suffix(".bmp")), 2, ("two masks", "cx.bmp")),
    Case("two images of one name", lambda f: Image.open(image(f)).save(image(f).with_suffix(".bmp")), 2, ("two images of one name", "cx.bmp")),
    Case("masks without images", lambda f: image(f).unlink(), 0, ("1 mask without image", "cx.png")),
    Case("hidden and system files", lambda f: [(f / "imgs" / n).write_text("?") for n in (".DS_Store", "._cx.png", "Thumbs.db", "notes.txt")], 0, ("6 pairs",)),
    Case("a folder named as an image", lambda f: (f / "imgs" / "zz.png").mkdir(), 0, ("6 pairs",)),
    Case("sub-folders", renamed(lambda n: f"{n[0]}/in/{n}"), 0, ("6 pairs",)),
    Case("links that lead in a circle", lambda f: (f / "imgs" / "loop").symlink_to(f / "imgs"), 0, ("6 pairs",)),
    Case("names with spaces and in other scripts", renamed(lambda n: f"Bild {n[0]} ünïcode 図.png"), 0, ("6 pairs",)),
    Case("a path with a line break", lambda f: (image(f).rename(f / "imgs" / "c\nx.png"), mask(f).rename(f / "masks" / "c\nx.png")), 0, ("6 pairs",)),
    Case("a name that is no UTF-8", lambda f: [p.rename(os.fsdecode(os.fsencode(p.parent) + b"/c\xff.png")) for p in (image(f), mask(f))], 0, ("6 pairs",)),
    Case("endings in capitals", renamed(lambda n: n[:-3] + "PNG"), 0, ("6 pairs",)),
    Case("names with dots", renamed(lambda n: f"v1.2.{n}"), 0, ("6 pairs",)),
    Case("a name that begins another (1 and 10)", renamed(lambda n: ("1.png" if n[0] == "a" else "10.png" if n[0] == "b" else n)), 0, ("6 pairs",)),
    Case("masks with something added to their names", renamed(lambda n: n.replace(".png", "_mask.png"), ("masks",)), 0, ("6 pairs",)),
    Case("images and masks in one folder", lambda f: [p.rename(f / "imgs" / f"{p.stem}_mask.png") for p in sorted((f / "masks").iterdir())], 0, ("6 pairs",), ["--masks", "{}/imgs"]),
    Case("the same, of one name and another type", lambda f: [Image.open(p).save(f / "imgs" / f"{p.stem}.bmp") for p in sorted((f / "masks").iterdir())], 0, ("the .bmp files are the masks", "6 pairs"), ["--masks", "{}/imgs"]),
    Case("a list", listing(), 0, ("6 pairs", "by the list", "4 images to train on"), ["--list", "{}/pairs.csv"]),
    Case("a list with a file that is missing", listing(cx="gone"), 2, ("pairs.csv, line 4", "gone.png", "not found"), ["--list", "{}/pairs.csv"]),
    Case("a list without its header", listing("a,b,c"), 2, ("pairs.csv", "image,mask"), ["--list", "{}/pairs.csv"]),
    # sizes
    Case("image and mask rotated against each other", lambda f: Image.fromarray(pixels(mask(f)).T.copy()).save(mask(f)), 2, ("cx.png", "24x32", "32x24", "rotated by 90 degrees")),
    Case("a mask larger by one pixel", lambda f: Image.new("L", (33, 24)).save(mask(f)), 2, ("cx.png", "33x24", "--resize-masks")),
    Case("the same, with resized masks", lambda f: Image.fromarray(np.pad(pixels(mask(f)), ((0, 0), (0, 1)))).save(mask(f)), 0, ("6 pairs",), ["--resize-masks"]),
    Case("images of different sizes", lambda f: make_pair(f, "cx", size=(40, 50)), 0, ("2 sizes up to 50x40",)),
    Case("a photo that EXIF rotates", turned_by_exif, 0, ("6 pairs",)),
    Case("a batch larger than the set", lambda f: None, 2, ("--batch-size", "50"), ["--batch-size", "50"]),
    # pixels
    Case("16 bit", lambda f: each(f, "imgs", lambda p, a: Image.fromarray(a[..., 0].astype(np.uint16) * 16).save(p)), 0, ("grey, 16 bit",)),
    Case("one image of 16 bit among 8", lambda f: Image.fromarray(np.zeros((24, 32), np.uint16)).save(image(f)), 2, ("cx.png", "16 bit", "8 bit")),
    Case("transparency", with_alpha, 0, ("alpha", "dropped", "--channels 4")),
    Case("transparency, kept", with_alpha, 0, ("4 bands",), ["--channels", "4"]),
    Case("a grey image among colour", lambda f: Image.fromarray(pixels(image(f))[..., 0]).save(image(f)), 0, ("colour, 8 bit",)),
    Case("a CMYK JPEG among RGB", lambda f: Image.fromarray(pixels(image(f))).convert("CMYK").save(image(f).with_suffix(".jpg")) or image(f).unlink(), 0, ("colour, 8 bit",)),
    Case("WebP", as_format("imgs", ".webp"), 0, ("colour, 8 bit",)),
    Case("BMP", as_format("imgs", ".bmp"), 0, ("colour, 8 bit",)),
    Case("GIF", lambda f: each(f, "imgs", lambda p, a: Image.fromarray(a[..., 0]).save(p.with_suffix(".gif"))), 0, ("6 pairs",)),
    Case("float32 TIFF", as_tiff("float32"), 0, ("grey, float32",)),
    Case("images of 0 to 1 among those of 0 to 255", in_two_scales, 0, ("in 3 images, e.g. ", "bx.tif, and to ", "ax.tif: save all in one scale")),
    Case("nan in a float TIFF", float_with(np.nan), 2, ("cx.tif", "nan or infinity in 1 pixel", "--nodata nan")),
    Case("the same, declared", float_with(np.nan), 0, ("float32",), ["--nodata", "nan"]),
    Case("infinity in a float TIFF", float_with(np.inf), 2, ("cx.tif", "nan or infinity")),
    Case("int16 TIFF with GDAL's no-data value", as_tiff("int16", extratags=[(42113, 2, 0, "-300", True)]), 0, ("int16", "no-data value -300")),
    Case("five bands of 16 bit", as_tiff("uint16", 5), 0, ("5 bands, 16 bit",)),
    Case("two hundred bands", as_tiff("uint16", 200), 0, ("200 bands, 16 bit",), ["--augmentation", "overhead"]),
    Case("twelve bands of 8 bit", as_tiff("uint8", 12), 0, ("12 bands, 8 bit",)),
    Case("five bands among four", lambda f: (as_tiff("uint16", 5)(f), tifffile.imwrite(f / "imgs" / "cx.tif", np.zeros((24, 32, 4), np.uint16), photometric="minisblack", planarconfig="contig")), 2, ("cx.tif", "4 channels", "5")),
    Case("NPY arrays", numpy_arrays, 0, ("colour, 8 bit",)),
    Case("images of one colour", lambda f: Image.new("RGB", (32, 24), (9, 9, 9)).save(image(f)), 0, ("1 image of one colour", "cx.png")),
    Case("a copy of a training image in validation", lambda f: (listing()(f), shutil.copy(image(f, "ax"), image(f, "fx"))), 0, ("the same as training images", "fx.png", "ax.png"), ["--list", "{}/pairs.csv"]),
    # masks
    Case("masks of 0 and 1", masks_as(lambda a: (a > 0).astype(np.uint8)), 0, ("mask values 0, 1",)),
    Case("masks of 0 and 255", lambda f: None, 0, ("mask values 0, 255",)),
    Case("masks of 0 and 65535", masks_as(lambda a: a.astype(np.uint16) * 257), 0, ("mask values 0, 65535",)),
    Case("1-bit masks", masks_as(lambda a: a > 0), 0, ("classes: 2",)),
    Case("0, 1 and 255: nothing is ignored unasked", masks_as(lambda a: np.where(np.arange(32) < 9, 255, a // 255).astype(np.uint8)), 0, ("classes: 3, mask values 0, 1, 255",)),
    Case("masks of 0 and 255, one of 0 and 1", some_as_ones, 2, ("masks of 0 and 1 (", "masks/cx.png) and of 0 and 255 (", "--mask-threshold 0 if 1 and 255 are one class", "--ignore-index 255", "--classes 3")),
    Case("the same, thresholded at 0", some_as_ones, 0, ("classes: 2, mask values 0, 255, thresholded at 0",), ["--mask-threshold", "0"]),
    Case("the same, as three classes", some_as_ones, 0, ("classes: 3, mask values 0, 1, 255",), ["--classes", "3"]),
    Case("the same, with 255 to ignore", masks_as(lambda a: np.where(np.arange(32) < 9, 255, a // 255).astype(np.uint8)), 0, ("classes: 2, mask values 0, 1; 255 is ignored",), ["--ignore-index", "255"]),
    Case("a value to ignore that no mask has", lambda f: None, 2, ("--ignore-index 7", "0, 255"), ["--ignore-index", "7"]),
    Case("void around instances", masks_as(lambda a: np.where(np.arange(32) < 9, 255, (a > 0) * 7).astype(np.uint8)), 0, ("classes: 2, mask values 0, 255, thresholded at 0; 255 is ignored",), ["--mask-threshold", "0", "--ignore-index", "255"]),
    Case("palettes that differ", lambda f: (each(f, "masks", with_palette), swapped_palette(mask(f))), 2, ("index 0 is #000000", "#e0e0c0", "cx.png"),),
    Case("palette masks", lambda f: each(f, "masks", with_palette), 0, ("mask values 0, 1",)),
    Case("colour masks", masks_as(colours), 0, ("mask values #000080, #ff0000",)),
    Case("colour masks and a palette file", both(masks_as(colours), write("p.csv", "name,r,g,b\nsky,0,0,128\ncar,255,0,0\n")), 0, ("sky (#000080), car (#ff0000)",), ["--palette", "{}/p.csv"]),
    Case("a palette file that lacks a colour", both(masks_as(colours), write("p.csv", "sky,#000080\ncar,#00ff00\n")), 2, ("p.csv", "#ff0000", "x.png"), ["--palette", "{}/p.csv"]),
    Case("a palette file with a bad line", write("p.csv", "sky,0\ncar,red\n"), 2, ("p.csv", "line 2", "'car,red'"), ["--palette", "{}/p.csv"]),
    Case("one colour mask among grey", lambda f: Image.fromarray(colours(pixels(mask(f)))).save(mask(f)), 2, ("cx.png", "a colour image")),
    Case("one colour mask among grey, in the same greys", lambda f: Image.fromarray(pixels(mask(f))).convert("RGB").save(mask(f)), 0, ("classes: 2, mask values #000000, #ffffff",)),
    Case("photographs as masks", masks_as(lambda a: photograph(a.shape)), 2, ("different colours, none common", "if they are photographs, give the folder of masks as --masks")),
    Case("cut-outs as masks", masks_as(lambda a: photograph(a.shape) * (a > 0)[..., None]), 2, ("photographs of objects cut out, use --mask-threshold 0",)),
    Case("cut-outs as masks, with that flag", masks_as(lambda a: photograph(a.shape) * (a > 0)[..., None]), 0, ("classes: 2, mask values #000000, #ffffff, thresholded at 0",), ["--mask-threshold", "0"]),
    Case("one mask for all images", one_for_all, 0, ("all the same, e.g. ", "each image needs its own")),
    Case("names for the classes", lambda f: None, 0, ("ground (0), square (255)",), ["--class-names", "ground", "square"]),
    Case("a name too many", lambda f: None, 2, ("--class-names", "3 names for 2 classes"), ["--class-names", "a", "b", "c"]),
    Case("JPEG masks", as_format("masks", ".jpg", quality=60), 2, ("x.jpg", "lossy", "--mask-threshold 127")),
    Case("JPEG masks, thresholded at 127", as_format("masks", ".jpg", quality=60), 0, ("classes: 2, mask values 0, 255, thresholded at 127",), ["--mask-threshold", "127"]),
    Case("JPEG masks in colour", lambda f: each(f, "masks", lambda p, a: Image.fromarray(a).convert("RGB").save(p.with_suffix(".jpg"), quality=60)), 2, ("x.jpg", "different colours", "lossy", "--mask-threshold 127")),
    Case("JPEG masks of three classes, with --round-masks", lambda f: each(f, "masks", lambda p, a: Image.fromarray(striped(a)).save(p.with_suffix(".jpg"), quality=80)), 0, ("classes: 3, mask values 0, 128, 255; other values count as the nearest",), ["--classes", "3", "--round-masks"]),
    Case("one mask of 1 bit", lambda f: Image.fromarray(pixels(mask(f)) > 0).save(mask(f)), 2, ("masks/cx.png has 1 bit", "255 in")),
    Case("a band for each class", lambda f: each(f, "masks", lambda p, a: np.save(p.with_suffix(".npy"), np.eye(5, dtype=np.uint8)[a // 255])), 2, ("5 bands; a mask has one", "argmax")),
    Case("Cellpose's own files", lambda f: each(f, "masks", lambda p, a: np.save(p.with_suffix(".npy"), {"masks": a}, allow_pickle=True)), 2, ("holds Python objects", "_seg.npy", "File > Save masks as PNG/tif")),
    Case("soft edges in colour", masks_as(edged), 0, ("soft edges, use --mask-threshold 127",)),
    Case("soft edges", masks_as(soft), 2, ("different values", "soft edges", "--mask-threshold")),
    Case("instance ids of 16 bit, over all masks", partial(numbered, first=1000, dtype=np.uint16), 2, ("look like numbers of objects", "--instances", "--classes", "--mask-threshold 0")),
    Case("instance ids of 8 bit, with gaps", numbered, 2, ("look like numbers of objects", "--instances", "--classes", "--mask-threshold 0")),
    Case("the same, each an object", numbered, 0, ("classes: background, object, border",), ["--instances"]),
    Case("the same as JPEG", as_format("masks", ".jpg", quality=60), 2, ("x.jpg", "--instances", "16-bit PNG"), ["--instances"]),
    Case("the same, though no object has a number", lambda f: None, 2, ("--instances", "0, 255", "no object has a number of its own"), ["--instances"]),
    Case("instance ids with classes", with_classes, 0, ("classes: background, car, tree, pond, border",), ["--instances", "--class-names", "car", "tree", "pond"]),
    Case("the same, without the third name", with_classes, 2, ("x.tif", "value 3000001", "class * 1000000 + number, both from 1 on, of car, tree"), ["--instances", "--class-names", "car", "tree"]),
    Case("a folder of masks for each class", per_class, 2, ("no mask for", "imgs/ax.png", "python -m unet_ddp import"), ["--instances"]),
    Case("the same, as classes", per_class, 2, ("no mask for", "imgs/ax.png", "python -m unet_ddp import")),
    Case("folders of two classes that overlap", in_folders, 2, ("masks: a folder for each class", "are in two or more (car and tree", "use --overlap")),
    Case("the same, told", in_folders, 0, ("classes: car, tree, which may overlap",), ["--overlap"]),
    Case("folders of two classes that share no pixel", partial(in_folders, change=lambda a: 255 - a), 2, ("no pixel is in two classes", "python -m unet_ddp import")),
    Case("the same, to overlap", partial(in_folders, change=lambda a: 255 - a), 0, ("exclusive classes usually learn better",), ["--overlap"]),
    Case("a class's mask that is missing", then(Path.unlink), 0, ("1 of 6 images lack a file in", "background there"), ["--overlap"]),
    Case("the same, but all are wanted", then(Path.unlink), 2, ("1 of 6 images lack a file in", "masks/tree, e.g. cx"), ["--overlap", "--all-masks"]),
    Case("a class's mask of another name", then(lambda p: p.rename(p.with_name("other.png"))), 0, ("1 mask without image",), ["--overlap"]),
    Case("a class's mask of another size", then(lambda p: Image.new("L", (8, 9)).save(p)), 2, ("masks/tree/cx.png is 8x9", "masks/car/cx.png", "one size"), ["--overlap"]),
    Case("a class's mask in colour", then(lambda p: Image.fromarray(colours(pixels(p))).save(p)), 2, ("masks/tree/cx.png", "2 colours", "0 and one other value"), ["--overlap"]),
    Case("soft edges in a class's mask", then(lambda p: Image.fromarray(np.arange(768, dtype=np.uint16).astype(np.uint8).reshape(24, 32)).save(p)), 2, ("masks/tree/cx.png", "256 values", "0 and one other value"), ["--overlap"]),
    Case("void in a class's mask", then(partial(with_void, one=1, void=255)), 2, ("masks/tree/cx.png: 3 values (0, 1, 255)", "if 255 marks pixels to ignore, train with --ignore-index 255"), ["--overlap"]),
    Case("void in a class's mask, named", then(partial(with_void, one=255, void=7)), 0, ("classes: car, tree, which may overlap; 7 is ignored",), ["--overlap", "--ignore-index", "7"]),
    Case("folders of sixteen classes", then(many_folders), 2, ("16 folders of classes", "at most 15"), ["--overlap"]),
    Case("an empty folder among them", then(lambda p: (p.parents[1] / "sign").mkdir()), 0, ("masks/sign: contains no masks",), ["--overlap"]),
    Case("a file for each object", partial(per_object, "{}_{}.png"), 2, ("imgs/ax.png: has 2 masks", "masks/ax_0.png and", "masks/ax_1.png; if each is of an object", "python -m unet_ddp import")),
    Case("a folder of them for each image", partial(per_object, "{}/{}.png"), 2, ("imgs/ax.png: has 2 masks", "masks/ax/0.png and", "masks/ax/1.png; if each is of an object", "python -m unet_ddp import")),
    Case("masks of two kinds, one of them named", partial(per_object, "{}_{}.png"), 0, ("6 pairs", "6 masks without image"), ["--mask-suffix", "_1"]),
    Case("a page for each class", as_pages, 2, ("x.tif", "several frames or pages")),
    Case("a page for each class, which overlap", as_pages, 0, ("classes: 1, 2, which may overlap",), ["--overlap"]),
    Case("instance ids, as classes", numbered, 0, ("classes: 46, mask values 0, 1, 2",), ["--classes", "46"]),
    Case("instance ids, as one class", numbered, 0, ("classes: 2",), ["--mask-threshold", "0"]),
    Case("dark objects on bright ground", masks_as(lambda a: 255 - a), 0, ("--invert",)),
    Case("the same, inverted", masks_as(lambda a: 255 - a), 0, ("mask values 255, 0",), ["--invert"]),
    Case("masks of fractions", not_whole, 2, ("x.tif", "not whole numbers")),
    Case("a stray pixel", one_pixel, 0, ("class 77 has 1 pixel in all", "cx.png")),
    Case("the same, with --classes 2", one_pixel, 2, ("--classes 2", "0, 77, 255", "cx.png"), ["--classes", "2"]),
    Case("objects of two pixels, scaled", masks_as(two_pixels), 0, ("--scale 0.7 leaves nearly nothing of class 255 in 6 of 6 images: use a larger --scale",), ["--scale", "0.7", "--batch-size", "2"]),
    Case("all masks empty", masks_as(lambda a: a * 0), 2, ("only the value 0",)),
    Case("class weights for other classes", lambda f: None, 2, ("--class-weights", "3 weights for 2 classes"), ["--class-weights", "1", "2", "3"]),
    # splits
    Case("crops larger than the images", lambda f: None, 0, ("warning: --crop-size 512 512: the largest image has 32x24 pixels",), ["--crop-size", "512", "512"]),
    Case("one image", lambda f: [p.unlink() for side in ("imgs", "masks") for p in (f / side).iterdir() if p.stem != "ax"], 2, ("1 image in 1 group", "none left to train on", "--validation 0")),
    Case("a class that occurs in validation only", only_in_validation, 0, ("class 99 occurs in validation only",), ["--list", "{}/pairs.csv"]),
    Case("validation in its own folders", validation_set, 0, ("6 images to train on, 2 to validate",), ["--val-images", "{}/val/imgs", "--val-masks", "{}/val/masks"]),
    Case("training images for validation", lambda f: None, 2, ("--val-images", "is among --images too"), ["--val-images", "{}/imgs", "--val-masks", "{}/masks"]),
    Case("the second of three folds", lambda f: None, 0, ("fold 2 of 3", "4 images to train on, 2 to validate"), ["--fold", "2/3"]),
    Case("more folds than images", lambda f: None, 2, ("--fold 1/9", "6 groups"), ["--fold", "1/9"]),
]  # fmt: skip


# -- how a case is run ---------------------------------------------------------------------


def make_case(number: int, folder: Path) -> Case:
    """Make the files of a case."""
    CASES[number].make(make_set(folder, 6))
    return CASES[number]


def run_case(number: int, folder: str) -> tuple[int, str, str]:
    """Return status, output and errors of train.py on this rank; of one alone, with its report."""
    from tests.ranks import call_main, call_train
    from unet_ddp.runs.folder import RunFolder

    case, claim = CASES[number], RunFolder.claim

    def claim_then_change(*args: Any) -> None:
        claim(*args)
        if case.during is not None:
            case.during(Path(folder))

    with mock.patch.object(RunFolder, "claim", claim_then_change):
        argv, is_alone = case.argv(Path(folder)), os.environ["WORLD_SIZE"] == "1"
        return call_main("train", argv, folder) if is_alone else call_train(argv, folder)


def main() -> int:
    """Write the table of docs/catalogue.md from the output on one and on two ranks."""
    from tests.ranks import Ranks

    ranks, rows = Ranks(2), ["| in the folders | train.py |", "|---|---|"]
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    for number, case in enumerate(CASES):
        results = []
        for size in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                make_case(number, Path(folder))
                outcomes = ranks.run(size, run_case, number, folder)
                results.append(shown_outcome(case, outcomes).replace(f"{folder}/", ""))
        if results[0] != results[1]:
            print(f"{case.name}: one rank prints {results[0]!r}, two print {results[1]!r}")
        flags = f" `{' '.join(case.flags).replace('{}/', '')}`" if case.flags else ""
        rows.append(f"| {case.name}{flags} | {results[0]} |")
    ranks.close()
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index("<!-- catalogue -->\n"), text.index("<!-- end of catalogue -->")
    table = "\n".join(["<!-- catalogue -->", *rows, ""])
    PAGE.write_text(text[:start] + table + text[end:], encoding="utf-8")
    print(f"{len(CASES)} cases")
    return 0


def shown_outcome(case: Case, outcomes: list[tuple[int, str, str]]) -> str:
    """Return the error, or the first line that the case is about."""
    if outcomes[0][0] != case.status:
        print(f"{case.name}: status {outcomes[0][0]}, not {case.status}")
    if case.status:
        shown = "".join(err for _, _, err in outcomes).strip()
    else:
        lines = outcomes[0][1].splitlines()
        shown = "trains; " + next((line for line in lines if case.says[0] in line), "?")
    return re.sub(r"\s+", " ", shown.replace("|", "\\|"))


if __name__ == "__main__":
    sys.exit(main())
