"""predict.py on images with map coordinates."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.evaluation.examples import grey_predictor
from tests.maps import CORNER, UTM, at, rasterio, write_map
from tests.prediction.models import noise, write_model, write_photo
from tests.prediction.outputs.writing import image_files, make, predicted
from tests.prediction.test_predict import run
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Mask
from unet_ddp.data.readers import base
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError, how_to_install
from unet_ddp.extras.geo.maps import Place
from unet_ddp.extras.objects.borders import CLASS_NAMES
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.outputs.polygons import Polygons, polygons
from unet_ddp.prediction import source
from unet_ddp.prediction.predictor import Predictor

SOUTH = at(0.5, (CORNER[0], CORNER[1] - 60))


def scene(path: Path, transform: Any = None, **options: Any) -> Path:
    """An image of which the upper left corner is without data."""
    image = noise(120, 90, seed=len(path.name))
    image[:30, :40] = 0
    return write_map(path, image, transform, **{"nodata": 0, **options})


def polygons_as_mask(features: list[Any], crs: Any, mask: Path) -> np.ndarray:
    """Draw the features of one image on its mask's grid."""
    from rasterio.features import rasterize
    from rasterio.warp import transform_geom

    with rasterio.open(mask) as dataset:
        shapes = [transform_geom(crs, dataset.crs, each["geometry"]) for each in features]
        drawn = rasterize(shapes, dataset.shape, transform=dataset.transform)
    return np.asarray(drawn)


def test_masks_lie_on_their_images_and_plain_ones_are_as_ever(here: Path) -> None:
    scene(here / "a.tif")
    scene(here / "turned.tif", at(0.5, turn=30), crs="EPSG:32632", nodata=None)
    write_photo(here / "c.png")
    assert run("a.tif", "turned.tif", "c.png", "--overlay") == 0
    assert Path("c_mask.png").exists() and not Path("a_mask.png").exists()
    for name in ("a", "turned"):
        with rasterio.open(f"{name}.tif") as image, rasterio.open(f"{name}_mask.tif") as mask:
            assert (mask.transform, mask.crs, mask.bounds, mask.shape) == (
                image.transform, image.crs, image.bounds, image.shape,
            )  # fmt: skip
            assert mask.nodata == 254 and mask.colormap(1)[255][:3] == (255, 255, 255)
            values, is_empty = mask.read(1), (image.dataset_mask() == 0)
        assert np.array_equal(values == 254, is_empty) and is_empty.any() == (name == "a")
        assert set(np.unique(values)) == {0, 255} | ({254} if name == "a" else set())
    values = np.asarray(Image.open("a_mask.tif"))
    assert run("a.tif", "-o", "plain.png") == 0
    plain = np.asarray(Image.open("plain.png"))
    assert np.array_equal(plain[values != 254], values[values != 254])


@pytest.mark.parametrize(
    ("labels", "nodata"),
    [(Labels((0, 1, 2), ignore=9), 9), (Labels((0, 300)), 65535),
     (Labels((0xFF0000, 0x00FF00), rgb=True), None), (Labels((0, 255), ignore=-1), 254),
     (Labels((0, 255), ignore=255, threshold=0), 254)],
    ids=str,
)  # fmt: skip
def test_the_value_of_no_data_is_no_class(here: Path, labels: Labels, nodata: int | None) -> None:
    write_model(here / "m.pt", labels)
    scene(here / "a.tif")
    assert run("a.tif", "-m", "m.pt") == 0
    with rasterio.open("a_mask.tif") as mask:
        assert mask.nodata == nodata and mask.count == (3 if labels.rgb else 1)
        if labels.rgb:
            assert (mask.read()[:, :30, :40] == 255).all()
        else:
            assert (mask.read(1)[:30, :40] == nodata).all()


def test_polygons_are_in_wgs84(here: Path) -> None:
    scene(here / "a.tif")
    scene(here / "bb.tif", SOUTH)
    assert run("a.tif", "bb.tif", "--polygons", "o.geojson") == 0
    features = json.loads(Path("o.geojson").read_text())["features"]
    shapely = pytest.importorskip("shapely", reason="the extra geo is not installed")
    assert all(shapely.from_geojson(json.dumps(each["geometry"])).is_valid for each in features)
    for name in ("a.tif", "bb.tif"):
        mask = Path(name.replace(".", "_mask."))
        own = [each for each in features if each["properties"]["image"] == name]
        values = np.asarray(Image.open(mask))
        assert np.array_equal(polygons_as_mask(own, "EPSG:4326", mask), values == 255)
        assert sum(each["properties"]["area"] for each in own) == (values == 255).sum()
    for ring in (each["geometry"]["coordinates"][0] for each in features):
        x, y = np.array(ring).T - np.array(ring)[0][:, None]
        assert (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() > 0  # RFC 7946: counterclockwise


@pytest.mark.parametrize(
    ("a", "b", "d", "e"),  # at quarter turns, a and e are exactly 0
    [(0.0, 0.5, 0.5, 0.0), (0.0, -0.5, 0.5, 0.0), (0.5, 0.0, 0.0, 0.5), (0.3, 0.4, 0.4, -0.3)],
)
def test_rings_are_counterclockwise_on_maps_turned_and_mirrored(
    a: float, b: float, d: float, e: float
) -> None:
    place = Place(UTM, (a, b, CORNER[0], d, e, CORNER[1]), 0.5)
    found = record(place, np.eye(1, 3, 1, dtype=np.uint8))
    x, y = np.array(json.loads(found)["geometry"]["coordinates"][0]).T
    assert (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() > 0


def record(place: Place, mask: Mask) -> str:
    """Return what a file of polygons says of an image in a place."""
    files, labels = image_files("e.tif"), Labels((0, 255))
    files.source.place = place
    return make(Polygons, labels, polygons="o.geojson").record(files, predicted(mask, labels))


def test_images_are_brought_to_the_networks_ground_resolution(here: Path) -> None:
    write_map(here / "fine.tif", noise(120, 90), at(0.25))
    write_map(here / "same.tif", noise(60, 45), at(0.5))
    found = Predictor.from_checkpoint("checkpoints/best.pt", device="cpu", ground_resolution=0.5)
    assert found.open(Source(Path("fine.tif"))).input_size == (
        30,
        22,
    )  # at the checkpoint's scale of 0.5
    assert found.open(Source(Path("same.tif"))).input_size == (30, 22)
    assert found("fine.tif").ids.shape == (120, 90)
    write_photo(here / "plain.png")
    assert run("fine.tif", "same.tif", "plain.png", "--ground-resolution", "0.5") == 0
    with rasterio.open("fine_mask.tif") as mask:
        assert mask.transform == at(0.25) and mask.shape == (120, 90)


def test_a_files_own_no_data_value_is_filled(here: Path) -> None:
    """The checkpoint knows none: its training images had all their pixels."""
    image = noise(40, 30)
    image[:20] = 7
    found = Predictor.from_checkpoint("checkpoints/best.pt", device="cpu")
    fill = np.array(found.preprocessing.fill, np.uint8)
    opened = found.open(Source(write_map(here / "a.tif", image, nodata=7)))
    assert (opened.read(0, 9) == fill).all()
    assert (found.open(Source(write_map(here / "b.tif", image))).read(0, 9) == 7).all()


@pytest.mark.parametrize("options", [
    {"compress": "lzw", "predictor": 2}, {"interleave": "band", "compress": "deflate"},
    {"dtype": "int16", "compress": "zstd"},
], ids=str)  # fmt: skip
def test_large_maps_are_read_in_windows(
    here: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    monkeypatch.setattr(source, "STREAMED", 1000)
    name = here / "a.tif"
    image = noise(150, 130).astype(options.get("dtype", "uint8"))
    write_map(name, image, tiled=True, blockxsize=64, blockysize=64, **options)
    with rasterio.open(name, "r+") as dataset:
        dataset.build_overviews([2, 4])
    found = source.open_image(Source(name), ImageFormat(3, image.dtype.name), 1.0)
    assert np.array_equal(found.read(60, 70), image[60:70])
    assert np.array_equal(found.read(0, 150), image)


def mixed(here: Path) -> list[str]:
    write_photo(here / "c.png")
    return ["a.tif", "c.png", "--polygons", "o.geojson"]


def no_crs(here: Path) -> list[str]:
    scene(here / "e.tif", crs=None)
    return ["e.tif", "--polygons", "o.geojson"]


def coarser(here: Path) -> list[str]:
    scene(here / "f.tif", at(1))
    return ["a.tif", "f.tif"]


def too_coarse(here: Path) -> list[str]:
    return ["a.tif", "--ground-resolution", "0.2"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (mixed, "--polygons o.geojson: c.png has no map coordinates; predict it apart"),
        (no_crs, "--polygons o.geojson: e.tif has map coordinates without a CRS; set it by gdal_edit.py -a_srs"),
        (coarser, "a.tif has pixels of 0.5 m on the ground, f.tif of 1 m; "),
        (too_coarse, "a.tif: pixels of 0.5 m on the ground, the network takes 0.4 m; "),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], make: Any, message: str
) -> None:
    scene(here / "a.tif")
    assert run(*make(here)) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {message}") and err.count("\n") == 1
    assert not list(here.glob("*_mask.*")) and not Path("o.geojson").exists()


def test_without_the_extra_a_line_says_what_is_lost(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene(here / "a.tif")
    monkeypatch.setitem(sys.modules, "rasterio", None)
    assert run("a.tif") == 0 and Path("a_mask.png").exists()
    assert capsys.readouterr().out.count("warning: a.tif: its mask gets no map coordinates") == 1
    assert run("a.tif", "--ground-resolution", "1", "--overwrite") == 2
    message = (
        "error: a.tif: its ground resolution: needs rasterio, which is not installed; "
        f"{how_to_install('geo')}\n"
    )
    assert capsys.readouterr().err == message
    for flag, value in (("--polygons", "o.geojson"), ("--annotations", "labelme")):
        assert run("a.tif", flag, value, "--overwrite") == 2
        err = capsys.readouterr().err
        assert err.startswith(
            f"error: {flag}: needs rasterio, which is not installed; python -m pip install"
        )


def test_a_scene_without_any_data_has_a_mask(here: Path) -> None:
    write_map(here / "a.tif", np.zeros((40, 30, 3), np.uint8), nodata=0, crs=UTM)
    assert run("a.tif") == 0
    with rasterio.open("a_mask.tif") as mask:
        assert (mask.read(1) == 254).all()


def test_a_tiff_too_large_to_read_whole_says_what_reads_it(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MOST_BYTES", 40 * 30 * 3 - 1)
    monkeypatch.setattr(base, "MOST_RATIO", 0.001)
    write_map(here / "a.tif", noise(40, 30), rowsperstrip=1, blockysize=1)
    monkeypatch.setitem(sys.modules, "rasterio", None)
    assert run("a.tif") == 2
    assert capsys.readouterr().err.endswith(f", or read it in windows: {how_to_install('geo')}\n")


def test_numbered_objects_are_on_the_map_and_none_where_there_is_no_data(here: Path) -> None:
    labels = ObjectLabels((0, 1, 2), names=CLASS_NAMES, separation=(0.3, 0.3))
    write_model(here / "m.pt", labels)
    scene(here / "a.tif")
    assert run("a.tif", "-m", "m.pt", "--polygons", "o.geojson", "--objects", "o.csv") == 0
    with rasterio.open("a_mask.tif") as mask:
        assert mask.transform == at() and mask.crs == UTM and mask.nodata is None
        numbers = mask.read(1)
    assert numbers.max() >= 1 and (numbers[:30, :40] == 0).all()
    features = json.loads(Path("o.geojson").read_text())["features"]
    assert {each["properties"]["number"] for each in features} == set(np.unique(numbers)) - {0}
    assert np.array_equal(polygons_as_mask(features, "EPSG:4326", Path("a_mask.tif")), numbers > 0)


@pytest.mark.parametrize(("names", "base"), [(("object",), 0), (("car", "tree"), 1_000_000)])
def test_objects_that_pixels_without_data_cut_are_several(
    here: Path, names: tuple[str, ...], base: int
) -> None:
    """Else the second part would be a hole of the first one's polygon."""
    labels = ObjectLabels.of(names)
    image = np.zeros((30, 40), np.uint8)
    image[5:25, 5:35] = 255
    data = np.full((30, 40), 255, np.uint8)
    data[12:16] = data[:, 33:] = 0
    write_map(
        here / "a.tif", np.stack([image, data], axis=2), photometric="minisblack", alpha="yes"
    )
    prediction = grey_predictor(labels)(image)
    assert prediction.ids.mean() > 0.4 and prediction.mask.max() == base + 1
    prediction = grey_predictor(labels)(here / "a.tif")
    assert prediction.mask[8, 8] == base + 1 and prediction.mask[20, 8] == base + 2
    assert prediction.mask.max() == base + 2 and not prediction.mask[data == 0].any()
    rings = [each["geometry"]["coordinates"] for each in polygons("a", prediction.mask, labels)]
    assert [len(each) for each in rings] == [1, 1]
    assert prediction.shares[1] == (prediction.mask > 0).sum() / (data > 0).sum()
    assert sum(prediction.shares) == pytest.approx(1)


def test_parts_of_an_object_that_touch_by_a_corner_are_several(here: Path) -> None:
    image, data = np.zeros((24, 24), np.uint8), np.full((24, 24), 255, np.uint8)
    image[4:20, 4:20] = 255
    data[:12, :12] = data[12:, 12:] = 0
    bands = np.stack([image, data], axis=2)
    write_map(here / "a.tif", bands, photometric="minisblack", alpha="yes")
    predictor = grey_predictor(ObjectLabels.of(("object",)))
    assert predictor(image).mask.max() == 1
    prediction = predictor(here / "a.tif")
    assert prediction.mask[8, 16] == 1 and prediction.mask[16, 8] == 2


def test_the_edge_of_the_data_is_no_outline_by_which_images_are_ranked(here: Path) -> None:
    """It is one in the mask, in any format, which has a value for no data."""
    scene(here / "a.tif")
    for name in ("a_mask.tif", "a_mask.png"):
        assert run("a.tif", "-o", name, "--rank", f"{name}.csv") == 0
        assert np.asarray(Image.open(name))[0, 0] == 254
    assert Path("a_mask.tif.csv").read_text() == Path("a_mask.png.csv").read_text()
    shares = Predictor.from_checkpoint("checkpoints/best.pt", device="cpu")("a.tif").probabilities
    ids, window = np.argmax(shares, axis=0).astype(np.uint8), np.ones((3, 3), np.uint8)
    is_outline = cv2.dilate(ids, window) != cv2.erode(ids, window)
    entropy = -(shares * np.log2(shares)).sum(axis=0)
    uncertainty = float(Path("a_mask.tif.csv").read_text().splitlines()[1].split(",")[1])
    assert uncertainty == pytest.approx(entropy[is_outline].mean(), abs=1e-4)


def test_an_image_in_storage_without_a_crs_is_one_line(here: Path) -> None:
    """Others are found before the job starts."""
    with pytest.raises(UserError, match=r"^e.tif: has map coordinates without a CRS"):
        record(Place("", at()[:6], 0.0), np.ones((2, 2), np.uint8))


def test_images_placed_by_control_points_or_world_files_are_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither is read, so that polygons are in pixels: a line says so, once in a job."""
    corners = [(0, 0), (0, 40), (30, 0), (30, 40)]
    points = [
        rasterio.control.GroundControlPoint(r, c, 9 + c / 1e4, 48 - r / 1e4) for r, c in corners
    ]
    for name in ("b.tif", "c.tif"):
        pixels = np.moveaxis(noise(30, 40), -1, 0)
        how = {"height": 30, "width": 40, "count": 3, "dtype": "uint8", "driver": "GTiff"}
        with rasterio.open(here / name, "w", **how) as file:
            file.write(pixels)
            file.gcps = points, "EPSG:4326"
    scene(here / "d.tif")
    Path("d.tfw").write_text("0.5\n0\n0\n-0.5\n0\n0\n")  # what a GeoTIFF says itself counts
    for name, world in (("e.png", "e.pgw"), ("f.jpeg", "F.JGW"), ("g.jpg", "h.jgw")):
        write_photo(here / name)
        Path(world).write_text("0.5\n0\n0\n-0.5\n0\n0\n")
    assert run("b.tif", "c.tif", "e.png", "f.jpeg", "g.jpg", "--polygons", "o.geojson") == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "warning" in line] == [
        "warning: 2 images placed by ground control points, which are not read, e.g. b.tif: no place on a map for "
        "masks and polygons; first use gdalwarp b.tif NEW.tif",
        "warning: 2 images with a world file, which is not read, e.g. e.png with e.pgw: no place on a map for "
        "masks and polygons; first use gdal_translate -a_srs EPSG:NUMBER e.png NEW.tif",
    ]
    assert run("d.tif", "g.jpg") == 0
    assert "warning" not in capsys.readouterr().out
