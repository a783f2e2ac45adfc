"""Pillow images as data: each is trained on and scored as a file of the same picture, or refused like one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import unet_ddp
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
from unet_ddp.extras.arrays.item_files import write_items
from unet_ddp.extras.arrays.items import Column, Items
from unet_ddp.prediction.source import open_array

pytestmark = pytest.mark.usefixtures("no_report")
COLOURS = np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)
COLOUR = Image.fromarray(COLOURS)
MASK = Image.fromarray((COLOURS[..., 0] > 99).astype(np.uint8))
MODES = ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"]
FILES = {"1": "png", "L": "png", "LA": "png", "P": "png", "RGB": "png", "RGBA": "png", "I;16": "png", "CMYK": "jpg"}  # fmt: skip


def make(mode: str) -> Image.Image:
    """Return a picture of a mode; alpha differs from pixel to pixel."""
    if mode == "I;16":
        return Image.fromarray(COLOURS[..., 0].astype(np.uint16) * 200)
    if mode in ("LA", "RGBA"):
        picture = COLOUR.convert(mode)
        picture.putalpha(Image.fromarray(COLOURS[..., 1]))
        return picture
    if mode == "LAB":
        from PIL import ImageCms

        profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        return ImageCms.applyTransform(COLOUR, ImageCms.buildTransform(*profiles, "RGB", "LAB"))  # type: ignore[return-value]
    return COLOUR.convert("P").convert("PA") if mode == "PA" else COLOUR.convert(mode)


def write(folder: Path, image: Any, mask: Any = MASK) -> tuple[Path, Path]:
    """Return the files that are written of an image and a mask."""
    items = Items(Column("images", [image]), Column("masks", [mask]))
    written, _ = write_items(items, folder)
    (first,), (second,) = ((written / kind).iterdir() for kind in ("images", "masks"))
    return first, second


@pytest.mark.parametrize("mode", FILES)
def test_an_image_is_read_as_its_file(tmp_path: Path, mode: str) -> None:
    file = tmp_path / f"a.{FILES[mode]}"
    make(mode).save(file)
    with Image.open(file) as picture, Source(file) as expected:
        assert picture.mode == mode
        written, _ = write(tmp_path, picture)
        with Source(written) as found:
            one, other = found.header, expected.header
            assert (one.channels, one.dtype, one.has_alpha) == (
                other.channels,
                other.dtype,
                other.has_alpha,
            )
            for channels in {other.channels, other.channels + other.has_alpha}:
                how = ImageFormat(channels, other.dtype)
                assert np.array_equal(found.image(how)[0], expected.image(how)[0])


@pytest.mark.parametrize("mode", [*MODES, "I;16", "I", "F"])
def test_training_reads_what_the_predictor_does(tmp_path: Path, mode: str) -> None:
    """Issue: CMYK was trained as 4 bands of ink, and HSV and LAB as if they were red, green and blue."""
    picture = make(mode)
    with Source(write(tmp_path, picture)[0]) as written:
        how = ImageFormat(written.header.channels, written.header.dtype)
        assert np.array_equal(
            written.image(how)[0], open_array(picture, how, 1).read(0, picture.height)
        )
    assert how.channels == (1 if mode in ("1", "L", "LA", "I", "I;16", "F") else 3)


@pytest.mark.parametrize("mode", ["La", "RGBa"])
def test_what_the_predictor_refuses_is_not_trained_on(mode: str) -> None:
    picture = COLOUR.convert(f"{mode[:-1]}A").convert(mode)
    said = f"pixels of kind {mode}; save as 8 or 16 bit"
    with pytest.raises(unet_ddp.UserError, match=said):
        open_array(picture, ImageFormat(3), 1)
    for images, masks in (([picture], [MASK]), ([COLOUR], [picture])):
        with pytest.raises(unet_ddp.UserError, match=rf"(images|masks)\[0\]: {said}"):
            Items(Column("images", images), Column("masks", masks)).read(0, 1)
    wide = Image.fromarray(COLOURS[..., 0].astype(np.int32) * 1000)
    with pytest.raises(unet_ddp.UserError, match=r"images\[0\]: values beyond 16 bit"):
        Items(Column("images", [wide]), Column("masks", [MASK])).read(0, 1)


@pytest.mark.parametrize("mode", FILES)
def test_a_mask_is_read_as_its_file(tmp_path: Path, mode: str) -> None:
    file = tmp_path / f"m.{FILES[mode]}"
    make(mode).save(file)
    with Image.open(file) as picture:
        _, written = write(tmp_path, COLOUR, picture)
    with Source(written) as found, Source(file) as expected:
        assert np.array_equal(found.mask(), expected.mask())


@pytest.mark.parametrize("mode", ["PA", "RGBX", "YCbCr", "HSV", "LAB", "I", "F"])
def test_a_mask_of_which_there_is_no_file_has_indices_or_colours(tmp_path: Path, mode: str) -> None:
    picture = make(mode) if mode not in ("I", "F") else MASK.convert(mode)
    with Source(write(tmp_path, COLOUR, picture)[1]) as written:
        found = written.mask()
    if mode in ("PA", "I", "F"):
        expected = np.asarray(picture.convert("P") if mode == "PA" else MASK).astype(np.int32)
    else:
        expected = np.asarray(picture.convert("RGB")) @ np.array([1 << 16, 1 << 8, 1])
    assert np.array_equal(found, expected)


def test_transparency_is_dropped_or_kept_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue: it was a band like the others, without a word."""
    monkeypatch.chdir(tmp_path)
    images, masks = [make("RGBA") for _ in range(6)], [MASK] * 6
    found = unet_ddp.check(images, masks)
    assert "alpha: the images' transparency is dropped; keep it with --channels 4" in found.notes
    how: dict[str, Any] = {"width": 2, "epochs": 1, "batch_size": 2, "workers": 0, "device": "cpu"}
    run = unet_ddp.train(images=images, masks=masks, channels=4, **how)
    assert "alpha:" not in capsys.readouterr().out
    assert unet_ddp.evaluate(run, images, masks).images == 6
    clear = images[0].copy()
    clear.putalpha(0)
    one, other = (torch.from_numpy(np.array(each))[None] for each in (images[0], clear))
    assert not torch.equal(run.predictor().logits(one), run.predictor().logits(other))


def test_an_image_with_alpha_is_other_data_than_an_array_of_four_bands(tmp_path: Path) -> None:
    picture = make("RGBA")
    one, other = (write(tmp_path, image)[0] for image in (picture, np.asarray(picture)))
    assert (one.suffix, other.suffix) == (".png", ".npy")


def test_an_error_names_the_image_and_not_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images = [make("RGBA")] * 5 + [make("RGBA").crop((0, 0, 8, 8))]
    with pytest.raises(unet_ddp.UserError, match=r"masks\[5\] is 32x24, its image 8x8"):
        unet_ddp.train(images=images, masks=[MASK] * 6)
    assert not [*tmp_path.rglob("*.png")]


@pytest.mark.parametrize("side", ["images", "masks"])
def test_a_file_that_was_opened_and_is_truncated_is_a_line(tmp_path: Path, side: str) -> None:
    COLOUR.convert("CMYK").save(tmp_path / "a.jpg")
    content = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "a.jpg").write_bytes(content[: len(content) // 2])
    with Image.open(tmp_path / "a.jpg") as opened:
        given = {"images": [COLOUR], "masks": [MASK], side: [opened]}
        items = Items(*(Column(name, each) for name, each in given.items()))
        with pytest.raises(unet_ddp.UserError, match=rf"{side}\[0\]: corrupt or truncated"):
            items.read(0, 1)
