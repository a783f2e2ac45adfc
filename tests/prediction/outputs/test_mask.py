"""Masks, as others read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image

from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError
from unet_ddp.prediction.outputs.mask import write_mask

LABELS = [
    Labels((0, 255)),
    Labels((0, 1)),
    Labels((0, 3, 7)),
    Labels((5, 200)),
    Labels((5, 300)),
    Labels((0xFF0000, 0x00FF00, 0x0000FF), rgb=True),
    Labels((0, 2), palette=((9, 9, 9), (1, 1, 1), (200, 100, 0))),
]


@pytest.mark.parametrize("labels", LABELS, ids=str)
@pytest.mark.parametrize("suffix", [".png", ".PNG", ".tif"])
def test_masks_are_read_back_as_they_were(
    tmp_path: Path, rng: np.random.Generator, labels: Labels, suffix: str
) -> None:
    """By ourselves, and by others: Pillow, OpenCV, tifffile."""
    ids = rng.integers(0, labels.num_classes, (1001, 301)).astype(np.uint8)  # several bands
    path = tmp_path / f"m{suffix}"
    write_mask(ids, labels, path)
    expected = labels.to_image(ids)
    assert np.array_equal(np.array(labels.values)[ids], read_mask(path))
    if suffix == ".tif":
        assert np.array_equal(tifffile.imread(path), np.asarray(expected))
    else:
        stored = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        wanted = np.asarray(expected.convert("RGB") if expected.mode == "P" else expected)
        assert np.array_equal(stored[..., ::-1] if stored.ndim == 3 else stored, wanted)
    with Image.open(path) as image:
        if max(labels.values) <= 255 or labels.rgb:
            assert np.array_equal(image.convert("RGB"), expected.convert("RGB"))
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


def test_a_tiff_is_in_compressed_tiles(tmp_path: Path) -> None:
    write_mask(np.ones((300, 500), np.uint8), Labels((0, 200)), tmp_path / "a.tiff")
    with tifffile.TiffFile(tmp_path / "a.tiff") as tiff:
        page: Any = tiff.pages[0]
        assert page.tile == (256, 256) and page.compression.name == "ADOBE_DEFLATE"


def test_what_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/a\.png: can't be written"):
        write_mask(np.zeros((2, 2), np.uint8), LABELS[0], tmp_path / "file" / "a.png")
