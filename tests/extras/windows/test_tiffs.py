"""A window of a TIFF of any kind has the values and the properties that the whole file has."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from tests.maps import rasterio
from tests.object_store import MemoryBucket
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source, read_mask
from unet_ddp.errors import UserError
from unet_ddp.extras.windows.paths import Window
from unet_ddp.files import as_path

PART = Window(8, 16, 24, 32)
KINDS = [
    *product(("miniswhite", "minisblack"), (1, 2, 4, 8, 16)),
    *product(["palette"], (1, 2, 4, 8)),
]
TURNED = [
    ("miniswhite", 1),
    ("miniswhite", 8),
    ("minisblack", 1),
    ("minisblack", 16),
    ("palette", 8),
]


def write(path: Path, photometric: str, bits: int, **how: Any) -> Path:
    """Write a TIFF (48, 64) of all values that its bits have, up to 255; of random colours, if it has a palette."""
    random = np.random.default_rng(bits)
    values = random.integers(0, 1 << min(bits, 8), (48, 64)).astype(f"uint{max(bits, 8)}")
    if bits in (2, 4) or (bits == 1 and photometric == "palette"):  # which tifffile does not pack
        profile = {"width": 64, "height": 48, "count": 1, "dtype": "uint8", "nbits": bits}
        with rasterio.open(path, "w", "GTiff", photometric=photometric, **profile) as dataset:
            dataset.write(values, 1)
            if photometric == "palette":
                colours = random.integers(0, 256, (1 << bits, 3)).tolist()
                dataset.write_colormap(1, {k: (*rgb, 255) for k, rgb in enumerate(colours)})
        return path
    if photometric == "palette":
        how["colormap"] = (random.integers(0, 256, (3, 1 << bits)) * 257).astype(np.uint16)
    pixels = values.astype(bool) if bits == 1 else values
    tifffile.imwrite(path, pixels, photometric=photometric, **how)
    return path


def describe(path: Path) -> dict[str, Any]:
    with Source(path) as source:
        header = source.header
    names = (
        "channels",
        "dtype",
        "has_alpha",
        "has_colour_values",
        "palette",
        "nodata",
        "bits",
        "is_array",
    )
    return {name: getattr(header, name) for name in names}


def check_part(path: Path) -> None:
    whole, part = read_mask(path), read_mask(PART.of(path))
    assert part.dtype == whole.dtype
    np.testing.assert_array_equal(part, whole[PART.rows, PART.columns])
    described = describe(path)
    assert describe(PART.of(path)) == described
    wanted = [ImageFormat(described["channels"], described["dtype"])]
    if described["dtype"] == "uint8" and not described["is_array"]:
        wanted += [ImageFormat(channels) for channels in (1, 3, 4)]
    for form in wanted:
        with Source(path) as source, Source(PART.of(path)) as other:
            pixels, _ = source.image(form)
            np.testing.assert_array_equal(other.image(form)[0], pixels[PART.rows, PART.columns])


@pytest.mark.parametrize(("photometric", "bits"), KINDS)
def test_a_part_of_a_tiff_is_that_of_the_whole(tmp_path: Path, photometric: str, bits: int) -> None:
    check_part(write(tmp_path / "a.tif", photometric, bits))


@pytest.mark.parametrize(("photometric", "bits"), TURNED)
def test_a_part_of_a_turned_tiff_is_that_of_the_whole(
    tmp_path: Path, photometric: str, bits: int
) -> None:
    how = {"extratags": [(274, 3, 1, 3, True)]}  # upside down
    check_part(write(tmp_path / "a.tif", photometric, bits, **how))


@pytest.mark.parametrize("photometric", ["miniswhite", "minisblack", "rgb"])
@pytest.mark.parametrize("alpha", ["unassalpha", "assocalpha"])
def test_a_part_of_a_tiff_with_alpha_is_that_of_the_whole(
    tmp_path: Path, photometric: str, alpha: str
) -> None:
    bands = 4 if photometric == "rgb" else 2
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, bands), np.uint8)
    how = {"extrasamples": [alpha], "planarconfig": "contig"}
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric=photometric, **how)
    check_part(tmp_path / "a.tif")


@pytest.mark.parametrize(("photometric", "bits"), KINDS)
def test_a_part_of_an_object_is_that_of_the_file_or_refused(
    tmp_path: Path, memory_store: MemoryBucket, photometric: str, bits: int
) -> None:
    import obstore

    path = write(tmp_path / "a.tif", photometric, bits)
    name = f"set/{photometric}_{bits}.tif"  # objects stay open
    obstore.put(memory_store.store, name, path)
    part = PART.of(as_path(f"s3://bucket/{name}"))
    if bits >= 8 and photometric != "miniswhite":
        np.testing.assert_array_equal(read_mask(part), read_mask(path)[PART.rows, PART.columns])
        return
    with pytest.raises(UserError) as caught:
        read_mask(part)
    assert str(caught.value) == (
        f"s3://bucket/{name}: windows of objects are not read of TIFFs of 1 to 4 bits, that are turned, or where "
        "0 is white; convert it"
    )
