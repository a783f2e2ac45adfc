"""Sets with polygons: how files are found, what a check says of them, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.checks.test_check import collected
from tests.extras.polygons.labelled_maps import (
    box,
    shapely,
    shapes_on,
    to_degrees,
    write_labels,
    write_scenes,
)
from tests.maps import at, write_map
from tests.prediction.models import noise
from unet_ddp.checks.check import check_dataset, prepare_data
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import PreparedData, Sample, SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import Report, find_pairs
from unet_ddp.data.pairs import find_stamp
from unet_ddp.data.readers.read import read_mask
from unet_ddp.data.splits import write_split
from unet_ddp.errors import UserError, hide_secrets
from unet_ddp.extras.polygons.burnt_mask import BurntMask, parse
from unet_ddp.extras.polygons.layers import find_files, open_layer
from unet_ddp.storage import real_file


def prepared(
    images: Path, masks: Path | None, labels: Labels | None = None, **flags: Any
) -> PreparedData:
    places = {"images": str(images), "masks": str(masks)} if masks else {"pairs_file": str(images)}
    config = DataConfig(**places, **{"class_field": "kind", **flags})
    return prepare_data(config, seed=0, parts=DATA_PARTS, labels=labels)


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    """Six images, and labels.gpkg with a field kind and a field code."""
    shapes, kinds = shapes_on()
    codes = np.array([len(kind) for kind in kinds])
    write_labels(tmp_path / "labels.gpkg", to_degrees(shapes), "EPSG:4326", kind=kinds, code=codes)
    return write_scenes(tmp_path)


def test_a_picture_below_the_files_of_polygons_changes_nothing(tmp_path: Path) -> None:
    write_scenes(tmp_path)
    shapes, kinds = shapes_on()
    labels = tmp_path / "labels"
    (labels / "preview").mkdir(parents=True)
    for image in (tmp_path / "imgs").iterdir():
        write_labels(labels / f"{image.stem}.geojson", to_degrees(shapes), "EPSG:4326", kind=kinds)
    Image.fromarray(noise(8, 8)).save(labels / "preview" / "p.png")
    split = prepared(tmp_path / "imgs", labels).split
    assert len(split.training) + len(split.validation) == 6


def test_texts_in_one_file_and_numbers_in_another_are_refused(tmp_path: Path) -> None:
    write_scenes(tmp_path)
    shapes = to_degrees(shapes_on()[0])
    for k, value in enumerate([1, 2, "1", "tree", 1, 2]):
        labels = tmp_path / "labels" / f"{'abcdef'[k]}.geojson"
        labels.parent.mkdir(exist_ok=True)
        write_labels(labels, shapes[5 * k : 5 * k + 5], "EPSG:4326", kind=[value] * 5)
    images = sorted(path.stem for path in (tmp_path / "imgs").iterdir())
    for name, path in zip(images, sorted((tmp_path / "labels").iterdir()), strict=True):
        path.rename(path.with_name(f"{name}.geojson"))
    with pytest.raises(
        UserError, match=r"--class-field kind: texts in .*json, numbers in .*json; use one kind"
    ):
        prepared(tmp_path / "imgs", tmp_path / "labels")


def test_a_shapefile_whose_table_alone_changes_is_read_again(tmp_path: Path) -> None:
    """As an edit in a table of attributes does."""
    write_scenes(tmp_path)
    shapes, kinds = shapes_on()
    for name, values in (("l", kinds), ("other", [f"new {kind}" for kind in kinds])):
        write_labels(tmp_path / f"{name}.shp", to_degrees(shapes), "EPSG:4326", kind=values)
    before = prepared(tmp_path / "imgs", tmp_path / "l.shp").labels.class_names
    (tmp_path / "other.dbf").replace(tmp_path / "l.dbf")
    after = prepared(tmp_path / "imgs", tmp_path / "l.shp").labels.class_names
    assert after == [name if k == 0 else f"new {name}" for k, name in enumerate(before)]


# -- finding -------------------------------------------------------------------------------


def test_a_set_without_polygons_imports_nothing_of_them_and_lists_its_masks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("imgs", "masks"):
        (tmp_path / kind).mkdir()
        for k in range(4):
            Image.fromarray(noise(8, 8, k)[..., 0] // 128).save(tmp_path / kind / f"{k}.png")
    monkeypatch.setitem(sys.modules, "unet_ddp.extras.polygons.checks", None)  # an ImportError
    listed, walk = list[str](), os.walk
    monkeypatch.setattr(
        os, "walk", lambda folder, **how: listed.append(str(folder)) or walk(folder, **how)
    )
    prepared(tmp_path / "imgs", tmp_path / "masks", class_field=None)
    assert listed.count(str(tmp_path / "masks")) == 1


def test_texts_become_named_classes_after_the_background(maps: Path) -> None:
    data = prepared(maps / "imgs", maps / "labels.gpkg")
    assert data.labels == Labels((0, 1, 2, 3), names=("background", "building", "road", "water"))


def test_numbers_stay_mask_values(maps: Path) -> None:
    data = prepared(maps / "imgs", maps / "labels.gpkg", class_field="code")
    assert data.labels == Labels((0, 4, 5, 8))
    kept = prepared(maps / "imgs", maps / "labels.gpkg", class_field="code", classes=9)
    assert kept.labels == Labels(tuple(range(9)))


def test_without_a_field_there_are_two_classes(maps: Path) -> None:
    assert prepared(maps / "imgs", maps / "labels.gpkg", class_field=None).labels == Labels((0, 1))


def test_a_folder_has_a_file_for_each_image(maps: Path) -> None:
    """One without polygons, as programs save an image without objects."""
    for name in ("ax", "bx", "cx", "dx", "ex"):
        kind = "b" if name == "cx" else "a"
        k = ord(name[0]) - ord("a")
        write_labels(
            maps / "own" / f"{name}.geojson",
            to_degrees([box(0, 0, 9, 9, k)]),
            "EPSG:4326",
            kind=[kind],
        )
    (maps / "own" / "fx.geojson").write_text('{"type": "FeatureCollection", "features": []}')
    pairs = find_pairs(maps / "imgs", maps / "own", config=DataConfig(class_field="kind"))
    values = [int(read_mask(pair.mask)[4, 4]) for pair in pairs]
    assert values == [1, 1, 2, 1, 1, 0]  # of all files together
    (maps / "own" / "bx.geojson").unlink()
    with pytest.raises(UserError, match=r"no mask for .*imgs/bx.tif: looked for .*own/bx\.\*"):
        find_pairs(maps / "imgs", maps / "own", config=DataConfig(class_field="kind"))
    (maps / "imgs" / "bx.tif").unlink()
    shutil.copytree(maps / "imgs", maps / "own", dirs_exist_ok=True)  # next to the images
    beside = find_pairs(maps / "own", maps / "own", config=DataConfig(class_field="kind"))
    assert [int(read_mask(pair.mask)[4, 4]) for pair in beside] == [1, 2, 1, 1, 0]


def test_a_list_may_name_polygons_for_some_images_and_masks_for_others(maps: Path) -> None:
    write_map(maps / "m.tif", np.full((48, 48), 2, np.uint8), at(0.5, (500_000.0, 5_000_000.0)))
    rows = ["image,mask,split", "imgs/ax.tif,m.tif,training"]
    rows += [f"imgs/{name}x.tif,labels.gpkg,training" for name in "bcde"]
    (maps / "list.csv").write_text("\n".join([*rows, "imgs/fx.tif,labels.gpkg,validation"]))
    data = prepared(maps / "list.csv", None)
    assert data.labels.names == ("background", "building", "road", "water")
    assert [parse(pair.mask) is None for pair in data.split.training] == [True] + [False] * 4
    write_split(data.split, data.groups, maps / "split.csv")
    again = prepared(maps / "split.csv", None)
    assert [p.image for p in again.split.training] == [p.image for p in data.split.training]
    assert [p.mask.name for p in again.split.validation] == [
        p.mask.name for p in data.split.validation
    ]
    with pytest.raises(
        UserError, match="was listed with another --class-field, kind; use that, too"
    ):
        prepared(maps / "split.csv", None, class_field=None)


def test_labels_of_validation_images_have_the_classes_of_training(maps: Path) -> None:
    write_map(maps / "val" / "v.tif", noise(48, 48), at(0.5, (500_000.0, 5_000_000.0)))
    write_labels(maps / "val.gpkg", [box(0, 0, 9, 9)], kind=["water"])
    where = {"val_images": str(maps / "val"), "val_masks": str(maps / "val.gpkg")}
    data = prepared(maps / "imgs", maps / "labels.gpkg", **where)
    assert read_mask(data.split.validation[0].mask)[4, 4] == 3
    write_labels(maps / "val.gpkg", [box(0, 0, 9, 9)], kind=["lake"])
    with pytest.raises(
        UserError, match="kind 'lake' is no class of the training data, which are: bui"
    ):
        prepared(maps / "imgs", maps / "labels.gpkg", **where)


def test_a_resumed_run_keeps_its_classes(maps: Path) -> None:
    first = prepared(maps / "imgs", maps / "labels.gpkg").labels
    write_labels(maps / "labels.gpkg", [box(0, 0, 9, 9)], kind=["water"])
    data = prepared(maps / "imgs", maps / "labels.gpkg", first)
    assert int(read_mask(find_of(data, "ax"))[4, 4]) == 3


def find_of(data: PreparedData, name: str) -> Path:
    pairs = [*data.split.training, *data.split.validation]
    return next(pair.mask for pair in pairs if pair.name == name)


# -- stamps and paths ----------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".gpkg", ".geojson", ".shp"])
def test_a_change_of_the_labels_is_noticed(tmp_path: Path, suffix: str) -> None:
    write_scenes(tmp_path)
    labels, boxes = tmp_path / f"l{suffix}", [box(0, 0, 9, 9, k) for k in range(6)]
    write_labels(labels, boxes, kind=["a"] * 3 + ["b"] * 3)
    config = DataConfig(images=str(tmp_path / "imgs"), masks=str(labels), class_field="kind")

    def counts() -> list[int]:
        return [each.pixels for each in checked(config).table.values if each.value]

    assert counts() == [243, 243]
    write_labels(labels, boxes, kind=["a"] * 5 + ["b"])
    assert counts() == [405, 81]
    before = first_mask(tmp_path, labels)
    os.utime(tmp_path / "imgs" / "ax.tif", ns=(1, 1))  # it may lie elsewhere now
    assert first_mask(tmp_path, labels) != before


def first_mask(folder: Path, labels: Path) -> Path:
    """Return the path of the first image's mask: files that change have another one, so no cache has it."""
    return find_pairs(folder / "imgs", labels, config=DataConfig(class_field="kind"))[0].mask


def checked(config: DataConfig) -> Any:
    return check_dataset(config, Report(), seed=0, parts=DATA_PARTS)


@pytest.mark.parametrize("part", [".shx", ".dbf", ".prj", ".cpg"])
def test_a_changed_part_of_a_shapefile_is_noticed(tmp_path: Path, part: str) -> None:
    write_labels(tmp_path / "l.shp", [box(0, 0, 9, 9)], kind=["a"])
    write_scenes(tmp_path, 1)
    (tmp_path / "l.cpg").rename(tmp_path / "l.CPG")
    before = first_mask(tmp_path, tmp_path / "l.shp")
    os.utime(tmp_path / f"l{'.CPG' if part == '.cpg' else part}", ns=(1, 1))
    assert first_mask(tmp_path, tmp_path / "l.shp") != before


def test_many_classes_make_no_long_paths(tmp_path: Path) -> None:
    """Each window has the path in its own."""
    write_scenes(tmp_path, 1)
    kinds = [f"a kind of building, or of plants, with the number {k}" for k in range(254)]
    for name, count in (("few", 3), ("many", 254)):
        write_labels(tmp_path / f"{name}.gpkg", [box(0, 0, 9, 9)] * count, kind=kinds[:count])
    few, many = (first_mask(tmp_path, tmp_path / f"{name}.gpkg") for name in ("few", "many"))
    assert len(str(many)) < len(str(few)) + 5
    assert read_mask(few)[4, 4] == 3 and read_mask(many)[4, 4] == 1 + sorted(kinds).index(kinds[-1])


@pytest.mark.parametrize("names", [(), ("b", "c")])
def test_classes_that_change_while_a_run_reads_them_are_an_error(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Else the values of the others might move."""
    write_labels(write_scenes(tmp_path, 1) / "l.gpkg", [box(0, 0, 9, 9)], kind=["b"])
    config = DataConfig(class_field="kind")
    (pair,) = find_pairs(tmp_path / "imgs", tmp_path / "l.gpkg", names=names, config=config)
    write_labels(tmp_path / "l.gpkg", [box(0, 0, 9, 9)], kind=["c"])
    with pytest.raises(UserError, match=r"l.gpkg: changed while it was read; start again"):
        read_mask(pair.mask)


@given(
    labels=st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1),
    image=st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1),
    stamp=st.integers(0, 2**32),
    field=st.none() | st.text(min_size=1).filter(str.isprintable),
    names=st.lists(st.text(min_size=1).filter(str.isprintable), max_size=3),
    overlap=st.booleans(),
    ignore=st.none() | st.integers(-5, 300),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy
def test_a_path_says_all_of_a_mask(
    labels: str,
    image: str,
    stamp: int,
    field: str | None,
    names: list[str],
    overlap: bool,
    ignore: int | None,
) -> None:
    files = Path("/d", f"{labels}.gpkg"), Path("/s", f"{image}.tif")
    mask = BurntMask(*files, stamp, field, overlap, ignore, stamp, tuple(names))
    assert parse(mask.path) == mask and real_file(mask.path) == mask.labels
    assert parse(Path(f"{mask.path}#0+512+32+32.window")) == mask
    assert parse(mask.labels) is None


@pytest.mark.parametrize("words", ["", "1", "%5B1%5D", "%7B%7D", "a", "%5B" * 1_300])
def test_a_path_in_a_list_may_say_anything(maps: Path, words: str) -> None:
    rows = [f"imgs/{name}x.tif,labels.gpkg#@{words}@{name}x.tif.polygons" for name in "abcdef"]
    (maps / "list.csv").write_text("\n".join(["image,mask", *rows]))
    assert prepared(maps / "list.csv", None).labels.names is not None


def test_labels_that_are_gone_in_the_middle_of_a_run_are_named(maps: Path) -> None:
    data = prepared(maps / "imgs", maps / "labels.gpkg")
    samples = SegmentationDataset(data.split.training, data.labels, data.format, scale=1.0)
    assert isinstance(samples[0, 0], Sample)
    (maps / "labels.gpkg").unlink()
    assert str(samples[0, 0]).removeprefix(f"{maps}/labels.gpkg") == "#ax.tif: not found"


def test_messages_name_the_labels_and_the_image() -> None:
    mask = BurntMask(Path("l.gpkg"), Path("/s/a b/ax.tif"), 0, "kind")
    assert hide_secrets(f"{mask.path}: wrong") == "l.gpkg#ax.tif: wrong"
    assert hide_secrets(f"a@b#@c.png, {mask.path}") == "a@b#@c.png, l.gpkg#ax.tif"


# -- what a check says ---------------------------------------------------------------------


def test_images_without_polygons_and_shared_areas_are_noted(tmp_path: Path) -> None:
    shapes = [box(0, 0, 20, 20), box(10, 10, 30, 30), box(12, 12, 14, 14), box(30, 10, 40, 20)]
    write_labels(tmp_path / "l.gpkg", shapes, kind=["a", "b", "b", "a"])  # the last two touch
    write_scenes(tmp_path)
    config = DataConfig(
        images=str(tmp_path / "imgs"), masks=str(tmp_path / "l.gpkg"), class_field="kind"
    )
    notes = collected(config)[0].notes
    assert (
        f"5 of 6 images have no polygon on them, e.g. {tmp_path}/imgs/bx.tif: background there"
        in notes
    )
    assert any(
        note.startswith(
            "2 pairs of polygons of different classes share an area, e.g. features 1 and 2 of "
        )
        for note in notes
    )
    report = Report()
    check_dataset(config, report, seed=0, parts=DATA_PARTS)
    assert not any(
        "share an area" in note for note in report.notes
    )  # training does not compare them


def test_a_text_is_one_class_however_its_accents_are_written(tmp_path: Path) -> None:
    write_scenes(tmp_path, 2)
    shapes = [box(4, 4, 20, 20, k) for k in (0, 1)]
    labels = write_labels(tmp_path / "l.gpkg", shapes, kind=["for\xeat", "fore\u0302t"])
    pairs = find_pairs(tmp_path / "imgs", labels, config=DataConfig(class_field="kind"))
    assert pairs.class_names == ("for\xeat",)
    assert all(read_mask(pair.mask).max() == 1 for pair in pairs)


def test_a_geopackage_that_an_editor_left_is_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = write_labels(tmp_path / "l.gpkg", [box(4, 4, 20, 20)])
    with closing(sqlite3.connect(labels)) as database:
        database.execute("PRAGMA journal_mode = WAL")
    connect = sqlite3.connect

    def as_in_read_only_folder(address: str, **options: Any) -> sqlite3.Connection:
        if "immutable=1" not in address:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(address, **options)

    monkeypatch.setattr(sqlite3, "connect", as_in_read_only_folder)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert open_layer(labels).count == 1


def test_edits_in_the_log_of_a_geopackage_change_the_labels(tmp_path: Path) -> None:
    """As QGIS keeps them while it has the file open."""
    labels = write_labels(tmp_path / "l.gpkg", [box(4, 4, 20, 20)], kind=["a"])
    with closing(sqlite3.connect(labels, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        found = find_files(labels), find_stamp(labels)
        database.execute("CREATE TABLE edits (text)")
        assert find_stamp(labels) == found[1]
        assert found[0] == [labels] and find_files(labels) == [labels, tmp_path / "l.gpkg-wal"]
    assert find_files(labels) == [labels]


def test_what_gdal_mends_itself_is_not_printed(tmp_path: Path) -> None:
    """As features of one id, which other programs write."""
    labels = write_labels(tmp_path / "l.geojson", to_degrees([box(4, 4, 20, 20)] * 2), "OGC:CRS84")
    text = labels.read_text().replace('"type": "Feature",', '"type": "Feature", "id": 1,')
    labels.write_text(text)
    read = "import sys, pathlib; from unet_ddp.extras.polygons.layers import open_layer; "
    read += "print(len(open_layer(pathlib.Path(sys.argv[1])).find(None, None).ids))"
    words = [sys.executable, "-c", read, str(labels)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)  # pytest has filters
    assert (done.stdout, done.stderr, text.count('"id": 1')) == ("2\n", "", 2)


def test_a_view_is_no_layer(maps: Path) -> None:
    with sqlite3.connect(maps / "labels.gpkg") as file:
        file.execute("ALTER TABLE labels RENAME TO base")
        file.execute("CREATE VIEW labels AS SELECT * FROM base")
    file.close()
    with pytest.raises(
        UserError, match=r"layer labels is a view, which may call functions; save it"
    ):
        prepared(maps / "imgs", maps / "labels.gpkg")


def test_a_view_beside_the_layer_is_passed_over(maps: Path) -> None:
    before = prepared(maps / "imgs", maps / "labels.gpkg")
    with sqlite3.connect(maps / "labels.gpkg") as file:
        file.execute("CREATE VIEW saved AS SELECT * FROM labels")
        for table in ("gpkg_contents", "gpkg_geometry_columns"):  # as ogr2ogr and QGIS register it
            columns = [row[1] for row in file.execute(f"PRAGMA table_info({table})")]
            names = ", ".join(columns)
            values = names.replace("table_name", "'saved'").replace("identifier", "'saved'")
            file.execute(f"INSERT INTO {table} ({names}) SELECT {values} FROM {table}")
    file.close()
    after = prepared(maps / "imgs", maps / "labels.gpkg")
    assert after.labels == before.labels and len(after.labels.names) > 2


# -- mistakes ------------------------------------------------------------------------------


def several_layers(folder: Path) -> dict[str, Any]:
    for layer in ("roofs", "roads"):
        write_labels(
            folder / "l.gpkg", [box(0, 0, 9, 9)], layer=layer, append=layer == "roads", kind=["a"]
        )
    return {}


def without(part: str) -> Callable[[Path], dict[str, Any]]:
    def remove(folder: Path) -> dict[str, Any]:
        write_labels(folder / "l.shp", [box(0, 0, 9, 9)], kind=["a"])
        (folder / f"l{part}").unlink()
        return {}

    return remove


def with_pipe(folder: Path) -> dict[str, Any]:
    """A part of a shapefile that blocks whoever opens it."""
    without(".prj")(folder)
    os.mkfifo(folder / "l.prj")
    return {}


def wrote(
    name: str, *shapes: Any, crs: str | None = "EPSG:32633", flags: Any = (), **fields: Any
) -> Any:
    def write(folder: Path) -> dict[str, Any]:
        write_labels(folder / name, shapes, crs, **fields)
        return dict(flags)

    return write


def content(name: str, text: str) -> Callable[[Path], dict[str, Any]]:
    def write(folder: Path) -> dict[str, Any]:
        (folder / name).write_text(text)
        return {}

    return write


def pictures(folder: Path) -> dict[str, Any]:
    write_labels(folder / "l.gpkg", [box(0, 0, 9, 9)], kind=["a"])
    Image.fromarray(noise(48, 48)).save(folder / "imgs" / "ax.png")
    (folder / "imgs" / "ax.tif").unlink()
    return {}


def without_crs(folder: Path) -> dict[str, Any]:
    write_labels(folder / "l.gpkg", [box(0, 0, 9, 9)], kind=["a"])
    write_scenes(folder, 1, crs=None)
    return {}


def geojson(ring: Any) -> str:
    shape = {"type": "Polygon", "coordinates": [ring]}
    features = [{"type": "Feature", "properties": {"kind": "a"}, "geometry": shape}]
    return json.dumps({"type": "FeatureCollection", "features": features})


ONE = box(0, 0, 9, 9)
POINT, LINE = shapely.centroid(ONE), shapely.boundary(ONE)
FEATURE = {
    "type": "Feature",
    "properties": {"kind": ["a", "b"]},
    "geometry": {"type": "Polygon", "coordinates": [[[15, 45], [15.1, 45], [15, 45.1], [15, 45]]]},
}
MISTAKES: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "another field": (wrote("l.gpkg", ONE, type=["a"], n=[1]), r"l.gpkg: has no field 'kind'; its fields: n, type"),
    "no CRS": (wrote("l.gpkg", ONE, crs=None, kind=["a"]), r"l.gpkg: has no CRS, .* ogr2ogr -a_srs EPSG:NUMBER"),
    "no .prj": (without(".prj"), r"l.shp: has no CRS, .*; copy the .prj of a shapefile, too"),
    "no .dbf": (without(".dbf"), r"l.shp: l.dbf is missing: a shapefile is several files"),
    "no .shx": (without(".shx"), r"l.shp: l.shx is missing: a shapefile is several files"),
    "a part is a pipe": (with_pipe, r"l.prj: is a pipe, socket or device, not a file; remove it"),
    "no class": (
        wrote("l.gpkg", ONE, ONE, ONE, kind=["a", "", None]),
        r"2 features without a value of kind, first feature 2; .* --ignore-index 255",
    ),
    "ignored value is a class": (
        wrote("l.gpkg", ONE, kind=["a"], flags={"ignore_index": 1}),
        r"--ignore-index 1: the classes of kind have the values 1 to 1; use --ignore-index 255",
    ),
    "points": (
        wrote("l.geojson", POINT, kind=["a"]),
        r"l.geojson: 0 layers of polygons among l \(Point\); give a file with one",
    ),
    "mixed": (
        wrote("l.geojson", ONE, POINT, LINE, kind=["a"] * 3),
        r"2 of 3 features are no polygons, the first is feature 1, a Point;",
    ),
    "mixed, with an index": (
        wrote("l.gpkg", ONE, POINT, kind=["a"] * 2),
        r"1 of 2 features are no polygons, the first is feature 2, a Point;",
    ),
    "no features": (
        content("l.geojson", '{"type": "FeatureCollection", "features": []}'),
        r"l.geojson: contains no polygons",
    ),
    "no shapes in a table": (wrote("l.gpkg", None, None, kind=["a", "b"]), r"l.gpkg: contains no polygons"),
    "no shapes in GeoJSON": (wrote("l.geojson", None, kind=["a"]), r"l.geojson: contains no polygons"),
    "no shapes in a shapefile": (
        wrote("l.shp", None, geometry="Polygon", kind=["a"]),
        r"l.shp: contains no polygons",
    ),
    "empty shapes": (wrote("l.gpkg", shapely.Polygon(), kind=["a"]), r"l.gpkg: contains no polygons"),
    "lists": (
        content("l.geojson", json.dumps(FEATURE)),
        r"kind of feature 0 is \[.*\]; a class is a text",
    ),
    "objects": (
        wrote("l.gpkg", ONE, flags={"instances": True, "class_field": None}, kind=["a"]),
        r"--instances: the polygons of .*l.gpkg become classes, without numbers of objects; leave --instances out",
    ),
    "outside": (
        wrote("l.gpkg", box(0, 0, 9, 9, k=9), kind=["a"]),
        r"no polygon lies on an image: in its CRS, 'EPSG:32633', the polygons cover x 500360 to 500364.5, y 4999995.5 "
        r"to 5000000, .*ax.tif covers x 500000 to 500024, y 4999976 to 5000000;",
    ),
    "several layers": (several_layers, r"2 layers of polygons among roofs .*, roads .*; .* ogr2ogr one.gpkg .*l.gpkg LAYER"),
    "fractions": (wrote("l.gpkg", ONE, kind=[1.5]), r"kind of feature 1 is 1.5; a class is a text, or a whole number"),
    "negative": (wrote("l.gpkg", ONE, kind=[-1]), r"kind of feature 1 is -1; .* from 0 to 65535"),
    "dates": (
        wrote("l.gpkg", ONE, kind=np.array(["2020-01-01"], "datetime64[D]")),
        r"kind of feature 1 is 2020-01-01.*; a class is a text, or a whole number",
    ),
    "too many": (
        wrote("l.gpkg", *[ONE] * 255, kind=[f"c{k}" for k in range(255)]),
        r"--class-field kind: 255 classes \(c0, c1, c10 and 252 more\); at most 254",
    ),
    "a file that names others": (content("l.gpkg", "<OGRVRTDataSource/>"), r"l.gpkg: is not a .gpkg file by its content"),
    "text that is no JSON": (content("l.geojson", "<kml/>"), r"l.geojson: is not a .geojson file by its content"),
    "a ring of one point": (content("l.geojson", geojson([[15, 45]])), r"l.geojson: feature 0 has a ring of too few points; remove"),
    "cut": (content("l.geojson", '{"type": "FeatureCollection", "fea'), r"l.geojson: corrupt or truncated"),
    "pictures": (pictures, r"ax.png: has no map coordinates, so the polygons of .*l.gpkg have no place on it"),
    "images without CRS": (without_crs, r"ax.tif: has no CRS, so the polygons of .*l.gpkg have no place on it"),
    "overlap of one class": (
        wrote("l.gpkg", ONE, flags={"overlap": True, "class_field": None}, kind=["a"]),
        r"--overlap: the polygons of .*l.gpkg are of one class without --class-field",
    ),
    "names twice": (
        wrote("l.gpkg", ONE, flags={"class_names": ("x", "y")}, kind=["a"]),
        r"--class-field kind: the 2 classes are background and its texts, a; leave --class-names and --classes out",
    ),
    "another count": (
        wrote("l.gpkg", ONE, flags={"classes": 3}, kind=["a"]),
        r"--class-field kind: the 2 classes are background and its texts, a; leave --class-names and --classes out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line(tmp_path: Path, mistake: str) -> None:
    make, message = MISTAKES[mistake]
    write_scenes(tmp_path, 2)
    flags = make(tmp_path)
    (labels,) = (
        path for path in tmp_path.iterdir() if path.suffix in (".gpkg", ".geojson", ".shp")
    )
    with pytest.raises(UserError, match=message) as caught:
        prepared(tmp_path / "imgs", labels, **flags)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Non closed ring")  # GDAL's; the package hides them
def test_a_ring_that_is_not_closed_is_closed(tmp_path: Path) -> None:
    """As QGIS shows it."""
    corners = [[15, 45], [15.1, 45], [15.1, 45.1]]
    found = []
    for ring in (corners, [*corners, corners[0]]):
        (tmp_path / "l.geojson").write_text(geojson(ring))
        found.append(open_layer(tmp_path / "l.geojson").find(None, "kind").geometries[0])
    assert found[0].area > 0 and found[0].equals(found[1])


def test_a_class_field_is_for_polygons_alone(tmp_path: Path) -> None:
    write_scenes(tmp_path)
    (tmp_path / "masks").mkdir()
    for name in "abcdef":
        Image.fromarray(np.eye(48, dtype=np.uint8)).save(tmp_path / "masks" / f"{name}x.png")
    with pytest.raises(UserError, match="--class-field kind: is for masks that are polygons"):
        prepared(tmp_path / "imgs", tmp_path / "masks")


@pytest.mark.parametrize(
    ("images", "masks"), [("imgs", "s3://b/l.gpkg"), ("s3://b/imgs", "l.gpkg")]
)
def test_addresses_are_refused(images: str, masks: str) -> None:
    config = DataConfig(images=images, masks=masks)
    with pytest.raises(
        UserError, match=r"is an address; polygons .* must be on this machine: copy"
    ):
        checked(config)
