"""Images that rasterio reads, and what GDAL is kept from."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from torch.utils.data import DataLoader

from tests.maps import CORNER, UTM, at, rasterio, write_map
from tests.prediction.models import noise
from tests.prediction.outputs.writing import make
from tests.reading import read_header, read_image
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers import base
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.extras.formats.tiff import lacks_parts
from unet_ddp.extras.geo import maps
from unet_ddp.extras.geo.checks import check_resolutions, ground_scale
from unet_ddp.extras.geo.maps import open_map
from unet_ddp.extras.outputs.polygons import Polygons

COLOUR = ImageFormat(3)


@pytest.mark.parametrize(
    ("crs", "transform", "resolution"),
    [
        (UTM, at(0.5), 0.5),
        (UTM, at(0.5, turn=30), 0.5),
        ("EPSG:2263", at(3), 3 * 0.3048006),  # in feet
        ("EPSG:4326", at(1e-5, (15, 45)), 1.1132),  # of latitude
        (None, at(0.5), 0),
    ],
)
def test_a_place_has_the_files_coordinates_and_metres(
    tmp_path: Path, crs: str | None, transform: Any, resolution: float
) -> None:
    path = write_map(tmp_path / "a.tif", noise(8, 6), transform, crs=crs, nodata=7)
    place = Source(path).place
    assert place is not None and read_header(path).nodata == 7
    assert place.resolution == pytest.approx(resolution, rel=1e-5)
    assert read_header(path).ground_resolution == place.resolution
    with rasterio.open(path) as dataset:
        assert (place.crs != "") == (crs is not None)
        assert place.crs == "" or rasterio.CRS.from_wkt(place.crs) == dataset.crs
        corner = rasterio.transform.xy(dataset.transform, 8, 6, offset="ul")
    assert place.to_map(np.array([[0, 0], [6, 8]]))[1] == pytest.approx(corner, rel=1e-12)


def test_plain_unreadable_and_other_files_have_none(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", noise(8, 6), photometric="rgb")
    (tmp_path / "b.tif").write_bytes(b"II*\0no image")
    (tmp_path / "c.png").write_bytes(b"")
    assert [Source(tmp_path / name).place for name in ("a.tif", "b.tif", "c.png")] == [None] * 3


def test_compressions_that_tifffile_alone_can_not_decode_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = noise(40, 30).astype(np.float32)
    path = write_map(tmp_path / "a.tif", image, compress="lzw", predictor=3, tiled=True,
                     blockxsize=16, blockysize=16)  # fmt: skip
    assert np.array_equal(read_image(path, ImageFormat(3, "float32")), image)
    monkeypatch.setitem(sys.modules, "rasterio", None)
    with pytest.raises(
        UserError, match=r"a.tif: its compression LZW needs 'pip install imagecodecs'; or save"
    ):
        read_image(path, ImageFormat(3, "float32"))


def test_files_next_to_an_image_are_not_opened(tmp_path: Path) -> None:
    """Pipes, here: to open one would wait for ever. Nor is one that the image's own tags name."""
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, noise(600, 600), photometric="rgb", metadata=None)
    with rasterio.open(path, "r+") as dataset:
        dataset.update_tags(ns="OVERVIEWS", OVERVIEW_FILE=str(tmp_path / "pipe"))
    for name in ("a.tif.ovr", "a.tif.msk", "a.tif.aux.xml", "a.tfw", "a.tifw", "pipe"):
        os.mkfifo(tmp_path / name)
    assert Source(path).place is None
    with Source(path).reading() as opened:
        assert opened.mark_nodata(np.zeros((600, 600), np.uint8), 9) == 0


def test_a_file_that_names_others_is_no_image(tmp_path: Path) -> None:
    write_map(tmp_path / "b.tif", noise(8, 6))
    vrt = """<VRTDataset rasterXSize="6" rasterYSize="8"><VRTRasterBand dataType="Byte" band="1">
    <SimpleSource><SourceFilename relativeToVRT="1">b.tif</SourceFilename><SourceBand>1</SourceBand>
    </SimpleSource></VRTRasterBand></VRTDataset>"""
    for name in ("a.tif", "a.tiff"):
        (tmp_path / name).write_text(vrt)
        assert Source(tmp_path / name).place is None
        with pytest.raises(UserError, match=f"^{tmp_path / name}: "):
            read_header(tmp_path / name)


def test_a_small_file_with_too_many_pixels_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MOST_BYTES", 64 * 64 * 3 - 1)
    monkeypatch.setattr(base, "MOST_RATIO", 0.001)
    path = write_map(tmp_path / "a.tif", noise(64, 64))
    with pytest.raises(UserError, match=r"64x64 pixels of 3 bytes in a small file: too large"):
        read_image(path, COLOUR)


@pytest.mark.parametrize(
    "layout",
    [
        {"blockysize": 5},
        {"tiled": True, "blockxsize": 16, "blockysize": 16},
        {"interleave": "band"},
        {"BIGTIFF": "YES", "SPARSE_OK": True},
    ],
    ids=str,
)
def test_a_height_that_the_strips_or_tiles_do_not_fill_is_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, Any]
) -> None:
    """GDAL reads what is not named as 0: a file of two kilobytes was predicted for hours."""
    monkeypatch.setattr(maps, "MOST_BYTES", 0)
    path = tmp_path / "a.tif"
    size: dict[str, Any] = {"width": 40, "height": 37, "count": 3, "dtype": "uint8"}
    with rasterio.open(path, "w", driver="GTiff", transform=at(0.5), **size, **layout) as out:
        out.write(noise(16, 40).transpose(2, 0, 1), window=((0, 16), (0, 40)))
    assert not lacks_parts(path)
    open_map(path).close()
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages[0].tags["ImageLength"].overwrite(60_000)  # type: ignore[union-attr]
    assert lacks_parts(path)
    with pytest.raises(
        UserError, match=r"a\.tif: corrupt or truncated \(strips or tiles are missing"
    ):
        open_map(path)
    (tmp_path / "b.tif").write_bytes(b"II*\0" + b"\xff" * 60)
    assert not lacks_parts(tmp_path / "b.tif")  # the library that opens it says what is wrong


def test_without_rasterio_geotiffs_are_plain_and_others_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_map(tmp_path / "a.tif", noise(8, 6))
    monkeypatch.setitem(sys.modules, "rasterio", None)
    assert Source(path).place is None and np.array_equal(read_image(path, COLOUR), noise(8, 6))
    with (
        pytest.raises(
            UserError,
            match="its ground resolution: needs rasterio, which is not installed; python -m pip install",
        ),
        Source(path).reading() as opened,
    ):
        opened.find_scale(ImageFormat(3, ground_resolution=0.5), 1.0)
    assert ground_scale(path, None, 0.5, 0.5) == 0.5


def test_images_are_reduced_to_the_ground_resolution_and_never_enlarged() -> None:
    path = Path("a.tif")
    assert ground_scale(path, 0.25, 1.0, 0.5) == 0.5
    assert ground_scale(path, 0.25, 0.5, 0.5) == 0.25
    assert ground_scale(path, 0.5, 0.5, 0.25) == 1.0
    assert ground_scale(path, 0.5, 1.0, 0.499) == 1.0  # one, but for rounding
    assert ground_scale(path, 0.499, 0.5, 0.5) == ground_scale(path, 0.5, 0.5, 0.499) == 0.5
    with pytest.raises(UserError, match=r"a.tif: pixels of 2 m .* takes 1 m; .* use .* 1 or more"):
        ground_scale(path, 2.0, 0.5, 0.5)


def test_different_ground_resolutions_are_an_error() -> None:
    paths = [Path(name) for name in "abcd"]
    check_resolutions([])
    check_resolutions(zip((0.5, None, 0, 0.502), paths, strict=True))
    with pytest.raises(UserError, match=r"^b has pixels of 0.3 m .*, d of 2 m; .*-resolution 2$"):
        check_resolutions(zip((0.5, 0.3, 0, 2.0), paths, strict=True))


@pytest.mark.parametrize(
    ("dtype", "nodata", "bands", "expected"),
    [("uint8", 0, 3, 12), ("uint8", 9, 3, 0), ("int16", 0, 3, 13), ("float32", float("nan"), 1, 13),
     ("uint8", None, 4, 12), ("uint8", None, 3, 0)],
)  # fmt: skip
def test_pixels_without_data_are_marked(
    tmp_path: Path, dtype: str, nodata: float | None, bands: int, expected: int
) -> None:
    image = np.full((700, 6, bands), 100, dtype)
    image[600:602] = 0 if nodata is None or not np.isnan(nodata) else np.nan
    image[0, 0, 0] = image[600, 0, 0]  # in one band: another pixel without data but of 8 bit
    alpha = {"photometric": "rgb", "alpha": "yes"} if bands == 4 else {}
    path = write_map(tmp_path / "a.tif", image, nodata=nodata, **alpha)
    ids = np.ones((700, 6), np.uint8)
    with Source(path).reading() as opened:
        assert opened.mark_nodata(ids, 255) == expected == (ids == 255).sum()
    assert expected == 0 or (ids[600:602] == 255).all()


def test_nan_is_no_data_beside_the_files_value(tmp_path: Path) -> None:
    """As elevation models have it: -9999 outside, nan where the sensor saw nothing."""
    image = np.full((8, 6, 1), 100, np.float32)
    image[0], image[1] = -9999, np.nan
    path = write_map(tmp_path / "a.tif", image, nodata=-9999)
    ids = np.ones((8, 6), np.uint8)
    wanted = ImageFormat(1, "float32", -9999, (7.0,))
    with Source(path) as source, source.reading() as opened:
        pixels, empty = source.image(wanted)
        assert opened.mark_nodata(ids, 255) == 12
    assert empty is not None and (empty == (ids == 255)).all()
    assert (pixels[:2] == 7).all() and (pixels[2:] == 100).all()


def test_threads_and_forked_readers_see_the_same_pixels(tmp_path: Path) -> None:
    """The parent has used GDAL before it forks, as a scan does: JPEG 2000, which hung so, is not read."""
    images = [noise(90, 70, seed) for seed in range(6)]
    paths = [write_map(tmp_path / f"{k}.tif", image) for k, image in enumerate(images)]
    loader: Any = DataLoader(
        Images(paths), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            found = list(pool.map(Images(paths).__getitem__, range(6)))
            assert all(map(np.array_equal, found, images))
        # They wait: a thread that just ends may hold PROJ's lock of its database while we fork.
        assert all(map(np.array_equal, loader, images))


class Images:
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> np.ndarray:
        assert Source(self.paths[index]).place is not None
        return np.array(read_image(self.paths[index], COLOUR))


def test_corner_is_the_upper_left_one(tmp_path: Path) -> None:
    place = Source(write_map(tmp_path / "a.tif", noise(8, 6))).place
    assert place is not None
    assert place.to_map(np.zeros((1, 2))).tolist() == [list(CORNER)]


@pytest.mark.parametrize(
    "crs",
    ['LOCAL_CS["Local Coordinates (m)",UNIT["metre",1]]', "+proj=eqc +R=1737400 +units=m +no_defs"],
    ids=["local", "the Moon"],
)
def test_a_crs_without_a_way_to_degrees_is_a_line_before_anything_is_predicted(
    tmp_path: Path, crs: str
) -> None:
    source = Source(write_map(tmp_path / "a.tif", noise(8, 6), at(), crs=crs))
    assert source.place is not None
    with pytest.raises(UserError, match="no way to longitude and latitude"):
        source.place.to_degrees(np.zeros((1, 2)))
    output = make(Polygons, Labels((0, 1)), polygons="p.geojson")
    with pytest.raises(UserError, match=r"^--polygons p.geojson: .*a.tif: its CRS has no way"):
        output.check({source: True})


def test_a_map_where_0_is_white_is_predicted_with_the_turned_value_of_no_data(
    tmp_path: Path,
) -> None:
    path = write_map(
        tmp_path / "a.tif", noise(8, 6)[..., :1], at(), nodata=7, photometric="MINISWHITE"
    )
    with Source(path) as source, source.reading() as opened:
        assert opened.find_format(ImageFormat(1)).nodata == 248


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_place_turns_with_the_pixels(tmp_path: Path, orientation: int) -> None:
    """Each corner lies on the map where its stored pixel does."""
    image = np.arange(48, dtype=np.uint8).reshape(8, 6, 1)
    path = write_map(tmp_path / "a.tif", image, at(0.5, turn=30))
    plain = Source(path).place
    with tifffile.TiffFile(path) as tiff:
        tags = [
            (tag.code, tag.dtype, tag.count, tag.value, True)
            for tag in tiff.pages[0].tags.values()
            if tag.code > 33000
        ]
    tags += [(274, 3, 1, orientation, True), (42113, 2, 0, "7", True)]
    how = {"photometric": "minisblack", "metadata": None, "extratags": tags}
    tifffile.imwrite(tmp_path / "b.tif", image[..., 0], **how)
    with Source(tmp_path / "b.tif") as source:
        turned, place = source.image(ImageFormat(1))[0][..., 0], source.place
        ids = np.zeros(turned.shape, np.uint8)
        with source.reading() as opened:
            assert opened.mark_nodata(ids, 9) == 1 and (ids[turned == 7] == 9).all()
    assert place is not None and plain is not None
    for row, column in np.ndindex(turned.shape):
        y, x = divmod(int(turned[row, column]), 6)
        found = place.to_map(np.array([[column + 0.5, row + 0.5]]))
        assert found == pytest.approx(plain.to_map(np.array([[x + 0.5, y + 0.5]])), rel=1e-12)


@pytest.mark.parametrize("bands", [1, 3])
def test_a_remote_map_is_refused_by_the_bytes_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bands: int
) -> None:
    """Of one band its strips of 64 pixels fit, of three they do not."""
    path = write_map(tmp_path / "a.tif", noise(64, 64)[..., :bands])
    with rasterio.open(path) as dataset:
        rows, columns = dataset.block_shapes[0]
    monkeypatch.setattr(maps, "MOST_BYTES", rows * columns * 2)
    if bands == 1:
        open_map(path, opener=lambda *_, **__: path.open("rb")).close()
        return
    with pytest.raises(UserError, match=f": parts of {columns}x{rows} pixels; save it in tiles"):
        open_map(path, opener=lambda *_, **__: path.open("rb"))


def test_the_resolution_of_a_scene_that_is_too_large_to_open_whole_is_known(tmp_path: Path) -> None:
    """Mostly empty: 200 million pixels in a small file."""
    path, side = tmp_path / "a.tif", 14_500
    about = {"count": 1, "dtype": "uint8", "crs": UTM, "transform": rasterio.Affine(*at(0.5)[:6])}
    how = {"width": side, "height": side, "tiled": True, "sparse_ok": True, "compress": "deflate"}
    with rasterio.open(path, "w", driver="GTiff", **how, **about):
        pass
    with Source(path) as source, source.reading() as opened:
        assert opened.find_scale(ImageFormat(1, ground_resolution=1.0), 1.0) == pytest.approx(0.5)
