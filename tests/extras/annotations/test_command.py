"""The import command: what it writes, and what it says of files that are not as they should be."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from unet_ddp.__main__ import main
from unet_ddp.checks.check import prepare_data
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.matching import read_list
from unet_ddp.data.readers.read import read_mask
from unet_ddp.extras.annotations import command as import_
from unet_ddp.extras.overlap.folders import read_codes

SQUARE = [1, 1, 5, 1, 5, 5, 1, 5]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with images of 8x6 pixels: a.png, b.png and sub/c.png."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "sub/c"):
        path = Path("imgs", f"{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(path)
    return tmp_path


def coco(*objects: Any, images: tuple[str, ...] = ("a.png",), **fields: Any) -> dict[str, Any]:
    """Return a COCO file's content; objects are polygons of the first image, or fields."""
    content = {
        "images": [{"id": 7 * k, "file_name": name, "width": 8, "height": 6} for k, name in enumerate(images)],
        "categories": [{"id": 30, "name": "tree"}, {"id": 4, "name": "car"}],
        "annotations": [
            {"id": k, "image_id": 0, "category_id": 4, "iscrowd": 0}
            | (each if isinstance(each, dict) else {"segmentation": [each]})
            for k, each in enumerate(objects)
        ],
    }  # fmt: skip
    return {**content, **fields}


def run(capsys: pytest.CaptureFixture[str], content: object, *flags: str) -> tuple[int, str]:
    """Return the exit status and output of the import of a file, of this content, to out."""
    if not isinstance(content, Path):
        text = content if isinstance(content, str) else json.dumps(content)
        content = Path("file.xml" if text.startswith("<") else "file.json")
        content.write_text(text)
    status = main(["import", str(content), "--images", "imgs", "-o", "out", *flags])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_a_set_to_train_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way: classes in the order of their ids, a palette, and pairs that train.py takes."""
    tree = {"category_id": 30, "segmentation": [[4, 0, 8, 0, 8, 6, 4, 6]]}
    content = coco(SQUARE, tree, images=("a.png", "sub/c.png", "b.png"))
    status, text = run(capsys, content)
    assert status == 0 and text == (
        "out: 3 masks of 2 objects; classes background, car, tree\n"
        "train on them with: train.py --list out/pairs.csv --palette out/palette.csv\n"
    )
    expected = np.zeros((6, 8), int)
    expected[1:5, 1:5], expected[:, 4:] = 1, 2
    np.testing.assert_array_equal(read_mask(Path("out/a.png")), expected)
    assert not read_mask(Path("out/sub/c.png")).any()
    assert Path("out/palette.csv").read_text() == "background,#000000\ncar,#800000\ntree,#008000\n"
    assert Path("out/pairs.csv").read_text() == (
        "image,mask\n../imgs/a.png,a.png\n../imgs/sub/c.png,sub/c.png\n../imgs/b.png,b.png\n"
    )
    data = prepare_data(
        DataConfig(pairs_file="out/pairs.csv", palette="out/palette.csv"), parts=DATA_PARTS, seed=0
    )
    assert data.labels.names == ("background", "car", "tree")
    assert data.labels.values == (0, 1, 2) and len(data.split.training) == 2


def test_later_or_smaller_objects_are_above(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = coco({"category_id": 30, "segmentation": [SQUARE]}, [0, 0, 8, 0, 8, 6, 0, 6])
    for flags, value in (((), 1), (("--overlap", "small"), 2)):
        assert run(capsys, content, *flags)[0] == 0
        assert set(np.unique(read_mask(Path("out/a.png"))[1:5, 1:5])) == {value}
        Path("out").rename(f"out{value}")


def test_objects_that_overlap_are_kept(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The way there and back: polygons, a folder for each class, codes."""
    tree = {"category_id": 30, "segmentation": [[2, 2, 8, 2, 8, 6, 2, 6]]}
    ignored = {"category_id": 5, "segmentation": [SQUARE]}
    categories = [
        {"id": 30, "name": "old/tree"},
        {"id": 4, "name": "car"},
        {"id": 5, "name": "ignore"},
    ]
    content = coco(SQUARE, tree, ignored, images=("a.png", "sub/c.png"), categories=categories)
    status, text = run(capsys, content, "--overlap", "keep")
    assert (status, text) == (
        0,
        "out: 2 masks of 3 objects; classes background, car, ignore, old/tree\n"
        "1 images have no mask; --empty all writes empty ones\n"
        "1 regions to ignore are not kept where classes overlap: left out\n"
        "class old/tree is in the folder old_tree\n"
        "train on them with: train.py --list out/pairs.csv --overlap\n",
    )
    assert np.unique(read_mask(Path("out/car/a.png"))).tolist() == [0, 255]
    assert not read_mask(Path("out/car/sub/c.png")).any()
    expected = np.zeros((6, 8), int)
    expected[1:5, 1:5] += 1
    expected[2:6, 2:8] += 2
    pairs = read_list(Path("out/pairs.csv"))
    (first,) = (pair for pair in pairs if pair.name.endswith("a"))
    np.testing.assert_array_equal(read_codes(first.mask), expected)
    status, text = run(capsys, content, "--overlap", "keep", "--empty", "all", "-o", "whole")
    assert text.endswith("train.py --images imgs --masks whole --overlap\n")
    data = prepare_data(
        DataConfig(images="imgs", masks="whole", overlap=True), parts=DATA_PARTS, seed=0
    )
    assert data.labels.class_names == ["car", "old_tree"]


def test_what_can_not_be_kept(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = coco(SQUARE, categories=[{"id": 4, "name": "car"}])
    keep = ["--overlap", "keep"]
    assert run(capsys, content, *keep)[1] == (
        "error: file.json: --overlap keep: classes: 1; 2 to 15 can overlap: leave the flag out\n"
    )
    assert run(capsys, content, *keep, "--instances")[1] == (
        "error: --instances and --overlap keep: use one of them\n"
    )


def test_numbers_of_objects(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crowd = {"iscrowd": 1, "segmentation": {"size": [6, 8], "counts": [6, 42]}}
    categories = [{"id": 4, "name": "car"}]
    content = coco(SQUARE, [5, 1, 7, 1, 7, 3, 5, 3], crowd, categories=categories)
    status, text = run(capsys, content, "--instances")
    assert status == 0 and text.endswith(
        "--list out/pairs.csv --instances --class-names car --ignore-index 65535\n"
    )
    assert "\n1 objects are crowds (iscrowd), or to ignore: not learnt. CVAT marks painted" in text
    with Image.open("out/a.png") as image:
        mask = np.asarray(image)
    assert mask.dtype == np.uint16 and not mask[:, 0].any() and not Path("out/palette.csv").exists()
    assert set(np.unique(mask)) == {0, 2, 3, 65535} and mask[2, 2] == 2 and mask[2, 6] == 3


def test_crowds_alone_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CVAT marks each painted object so: none would have a number."""
    crowd = {"iscrowd": 1, "segmentation": {"size": [6, 8], "counts": [6, 42]}}
    status, text = run(capsys, coco(crowd, crowd), "--instances")
    assert status == 2 and not Path("out").exists()
    assert text == (
        "error: file.json: all 2 objects are crowds (iscrowd 1), which have no numbers; set iscrowd to 0, or export 'CVAT "
        "for images' from CVAT\n"
    )
    assert run(capsys, coco(crowd, crowd))[0] == 0  # classes need no numbers


def test_a_renamed_image_has_the_file_of_its_name(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labelme's imagePath is the old name."""
    shape = {"label": "car", "points": [[1, 1], [5, 1], [5, 5]]}
    folder = labelme_folder({"shapes": [shape], "imagePath": "IMG_0001.jpg"})
    assert run(capsys, folder)[0] == 0
    assert read_mask(Path("out/a.png")).any()


def test_a_crowd_of_the_background_is_background(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crowd = {"category_id": 5, "iscrowd": 1, "segmentation": {"size": [6, 8], "counts": [6, 42]}}
    content = coco(crowd, SQUARE)
    content["categories"].append({"id": 5, "name": "background"})
    assert run(capsys, content, "--instances")[0] == 0
    mask = tifffile.imread("out/a.tif")
    assert set(np.unique(mask)) == {0, 1_000_002}


def test_numbers_of_objects_of_several_classes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A class's number is its place in the names that train.py is given."""
    crowd = {"iscrowd": 1, "segmentation": {"size": [6, 8], "counts": [6, 6, 36]}}
    tree = {"category_id": 30, "segmentation": [[5, 1, 7, 1, 7, 3, 5, 3]]}
    content = coco(SQUARE, tree, crowd)
    content["categories"][0]["name"] = "old tree"
    status, text = run(capsys, content, "--instances")
    line = "--list out/pairs.csv --instances --class-names car 'old tree' --ignore-index 65535\n"
    assert status == 0 and text.endswith(line)
    mask = tifffile.imread("out/a.tif")
    assert mask.itemsize == 4 and mask[2, 2] == 1_000_002 and mask[2, 6] == 2_000_003
    assert set(np.unique(mask)) == {0, 65535, 1_000_002, 2_000_003}
    flags = {"instances": True, "class_names": ("car", "old tree"), "ignore_index": 65535}
    content = coco(SQUARE, tree, images=("a.png", "b.png"))
    assert run(capsys, content, "--instances", "-o", "two")[0] == 0
    data = prepare_data(DataConfig(pairs_file="two/pairs.csv", **flags), parts=DATA_PARTS, seed=0)
    assert data.labels.class_names == ["background", "car", "old tree", "border"]


def test_masks_in_a_folder_for_each_class(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each value is an object; a folder's masks may have a suffix; hidden ones are left alone."""
    tree, car = np.zeros((2, 6, 8), np.uint8)
    tree[:, 4:], car[1:3, 1:3], car[1:3, 3:6] = 255, 7, 9
    for name, mask in (("car/a_mask", car), ("car/sub/c_mask", car * 0), ("tree/a", tree)):
        save_mask(f"masks/{name}.png", mask)
    save_mask("masks/.trash/b.png", tree)
    status, text = run(capsys, Path("masks"))
    assert status == 0 and text.startswith(
        "out: 2 masks of 3 objects; classes background, car, tree"
    )
    expected = np.where(tree > 0, 2, np.where(car > 0, 1, 0))  # by name: the tree is above
    assert np.array_equal(read_mask(Path("out/a.png")), expected)
    assert not read_mask(Path("out/sub/c.png")).any()
    assert run(capsys, Path("masks"), "--instances", "--overlap", "small", "-o", "objects")[0] == 0
    values = read_mask(Path("objects/a.tif"))
    assert values[0, 7] == 2_000_001 and values[1, 5] == 1_000_002 and values[1, 1] == 1_000_003
    assert [(values == value).sum() for value in np.unique(values)[1:]] == [6, 4, 20]
    Path("masks/tree/a.png").unlink()
    Path("masks/tree").rmdir()
    status, text = run(capsys, Path("masks"), "--instances", "-o", "cars")
    assert text.endswith("train.py --list cars/pairs.csv --instances --class-names car\n")
    assert np.asarray(Image.open("cars/a.png"))[1].tolist() == [0, 1, 1, 2, 2, 2, 0, 0]


@pytest.mark.parametrize("root", ["", "here"])
def test_the_images_may_be_beside_the_folders_of_the_classes(
    here: Path, capsys: pytest.CaptureFixture[str], root: str
) -> None:
    """However the two folders are named."""
    save_mask("car/a.png", np.ones((6, 8), np.uint8))
    said = run(capsys, here if root else Path())[1]
    assert said.startswith("out: 1 mask of 1 object; classes background, car\n")


def test_colours_of_masks_are_objects(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    colours = np.zeros((6, 8, 3), np.uint8)
    colours[:, 2:4], colours[:, 5:] = (255, 0, 9), (1, 2, 3)
    save_mask("masks/car/a.png", colours)
    assert run(capsys, Path("masks"), "--instances")[0] == 0
    row = np.asarray(Image.open("out/a.png"))[0]
    assert row.tolist() == [0, 0, 2, 2, 0, 1, 1, 1]


def test_numbered_regions_to_ignore_are_no_objects(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = [
        {"label": label, "points": [[x, 0], [x + 2, 0], [x + 2, 6], [x, 6]]}
        for x, label in ((0, "car"), (3, "__ignore__"))
    ]
    content = {"imagePath": "a.png", "imageHeight": 6, "imageWidth": 8, "shapes": shapes}
    status, text = run(capsys, content, "--instances")
    assert status == 0 and text.endswith("--instances --class-names car --ignore-index 65535\n")
    assert read_mask(Path("out/a.png"))[0].tolist() == [1, 1, 0, 65535, 65535, 0, 0, 0]


def test_a_linked_image_keeps_its_name_in_the_pairs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a store of files by content, whose names have no suffix; a folder may be a link too."""
    Path("store").mkdir()
    Path("imgs/a.png").rename("store/0a1b")
    Path("imgs/a.png").symlink_to("../store/0a1b")
    Path("real/deep").mkdir(parents=True)
    Path("linked").symlink_to("real/deep")
    assert run(capsys, coco(SQUARE), "-o", "linked/out")[0] == 0
    (row,) = Path("linked/out/pairs.csv").read_text().splitlines()[1:]
    assert row == "../../../imgs/a.png,a.png"


def test_sigterm_leaves_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def stop(*_: object) -> None:
        assert signal.getsignal(signal.SIGTERM) is not before  # or it would end pytest
        assert [path.name for path in here.glob(".out.*")]
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(import_, "write_mask", stop)
    Path("file.json").write_text(json.dumps(coco(SQUARE)))
    with pytest.raises(SystemExit) as end:
        main(["import", "file.json", "--images", "imgs", "-o", "out"])
    assert end.value.code == 128 + signal.SIGTERM and signal.getsignal(signal.SIGTERM) is before
    assert {path.name for path in here.iterdir()} == {"imgs", "file.json"}


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([], {"a", "b"}),
        (["--empty", "all"], {"a", "b", "c"}),
        (["--empty", "none"], {"a"}),
    ],
)
def test_images_without_objects(
    here: Path, capsys: pytest.CaptureFixture[str], flags: list[str], names: set[str]
) -> None:
    status, text = run(capsys, coco(SQUARE, images=("a.png", "b.png")), *flags)
    assert status == 0 and {path.stem for path in Path("out").rglob("*.png")} == names
    left = 3 - len(names)
    assert (f"{left} images have no mask; --empty all writes empty ones" in text) == bool(left)


def test_a_palette_keeps_the_classes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.csv").write_text("background,#000000\nbike,#00ff00\ncar,#ff0000\n")
    assert run(capsys, coco(SQUARE), "--palette", "p.csv")[0] == 0
    assert read_mask(Path("out/a.png"))[2, 2] == 2
    assert Path("out/palette.csv").read_text() == Path("p.csv").read_text()
    Path("out").rename("other")
    tree = coco({"category_id": 30, "segmentation": [SQUARE]})
    assert run(capsys, tree, "--palette", "p.csv") == (
        2,
        "error: file.json: image 'a.png': class 'tree' is not among background, bike, car; add it, or use another --palette\n",
    )


def test_what_is_left_out_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bow_tie = [0, 0, 8, 6, 8, 0, 0, 6]
    outside = [-9, 2, 3, 2, 3, 4, -9, 4]
    status, text = run(capsys, coco(bow_tie, outside, {"bbox": [1, 1, 2, 2]}))
    assert status == 0 and text.splitlines()[1:-1] == [
        "2 images have no mask; --empty all writes empty ones",
        "1 objects reach beyond their image: clipped",
        "1 boxes, ellipses, lines or points have no outline: left out",
        "1 class without any object: tree",
    ]
    mask = read_mask(Path("out/a.png"))
    assert mask[2:4, :3].all() and not mask[0, 4] and mask[3, 0] and mask[3, 7]
    assert "1 objects reach beyond their image" in run(capsys, coco(outside), "-o", "one")[1]


def test_absent_images(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = coco(SQUARE, images=("a.png", "gone.png"))
    assert run(capsys, content) == (
        2,
        "error: file.json: image 'gone.png' is not in imgs; add it, or use --skip-missing\n",
    )
    assert not Path("out").exists()
    status, text = run(capsys, content, "--skip-missing")
    assert status == 0 and "1 annotated images are not in --images: left out" in text


@pytest.mark.parametrize(
    "name",
    ["../../a.png", "/etc/a.png", r"C:\x\imgs\a.png", "x/../a.png", "./a.png", "deadbeef-a.png",
     "https://host/data/local-files/?d=imgs/a.png", "a.jpg", "a"],
)  # fmt: skip
def test_a_name_leads_to_an_image_in_the_folder_or_nowhere(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    outside = Image.new("RGB", (8, 6))
    outside.save("a.png")
    assert run(capsys, coco(SQUARE, images=(name,)))[0] == 0
    assert sorted(str(path) for path in Path("out").iterdir()) == [
        "out/a.png", "out/pairs.csv", "out/palette.csv",
    ]  # fmt: skip
    assert {path.name for path in here.iterdir()} == {"a.png", "imgs", "out", "file.json"}


MASK = '<mask label="car" rle="{}" left="0" top="0" width="{}" height="1" z_order="0"/>'


def cvat(shapes: str = "", before: str = "", version: str = "1.1") -> str:
    image = f'<image id="0" name="a.png" width="8" height="6">{shapes}</image>'
    labels = "<labels><label><name>car</name></label></labels>"
    return f"{before}<annotations><version>{version}</version><meta><task>{labels}</task></meta>{image}</annotations>"


def runs(counts: Any, size: tuple[int, int] = (6, 8)) -> dict[str, Any]:
    return coco({"segmentation": {"size": size, "counts": counts}})


def labels_of(line: str) -> Path:
    Path("data.yaml").write_text("names: [car]\n")
    Path("labels").mkdir()
    Path("labels/a.txt").write_text(line)
    return Path("data.yaml")


def studio(**value: Any) -> list[Any]:
    result = {"type": "brushlabels", "value": {"brushlabels": ["car"], **value}}
    sizes = {"original_width": 8, "original_height": 6}
    return [{"data": {"image": "a.png"}, "annotations": [{"result": [result | sizes]}]}]


def task(*results: dict[str, Any], **data: Any) -> list[Any]:
    """Return Label Studio's export of one image."""
    sizes = {"original_width": 8, "original_height": 6}
    found = [each | sizes if "value" in each else each for each in results]
    return [{"data": data or {"image": "a.png"}, "annotations": [{"result": found}]}]


def studio_of(width: int, height: int) -> list[Any]:
    """Return Label Studio's export of an image of another size."""
    found = CAR | {"original_width": width, "original_height": height}
    return [{"data": {"image": "a.png"}, "annotations": [{"result": [found]}]}]


HALF = {"points": [[0, 0], [50, 0], [50, 100], [0, 100]]}
CAR = {"type": "polygonlabels", "to_name": "photo", "value": {**HALF, "polygonlabels": ["car"]}}
VECTOR: dict[str, Any] = {
    "type": "vectorlabels",
    "value": {
        "vertices": [{"x": 1, "y": 1}, {"x": 9, "y": 1}, {"x": 9, "y": 9}],
        "closed": True,
        "vectorlabels": ["car"],
    },
}
BOX = {"type": "rectanglelabels", "value": {"x": 1, "rectanglelabels": ["car"]}}
APART = (
    {"id": "k", "type": "polygon", "value": HALF},
    {"id": "k", "type": "labels", "value": {**HALF, "labels": ["car"]}},
    {"id": "k", "type": "choices", "value": {**HALF, "choices": ["red"]}},
    {"id": "m", "type": "rectangle", "value": {"x": 1}},
    {"id": "m", "type": "labels", "value": {"x": 1, "labels": ["car"]}},
    {"type": "relation", "from_id": "k", "to_id": "m"},
)


@pytest.mark.parametrize(
    ("results", "data", "skipped"),
    [
        ((CAR,), {"caption": "A red car", "image": "a.png"}, 0),
        ((CAR,), {"caption": "b.png", "photo": "/data/upload/1/0a1b2c3d-a.png"}, 0),
        ((CAR,), {"id": "7", "url": "https://host/a.png?size=1"}, 0),
        ((CAR,), {"image": "a"}, 0),
        (APART, {}, 1),
    ],
)
def test_shapes_of_label_studio_are_of_their_task_s_image(
    here: Path, capsys: pytest.CaptureFixture[str], results: Any, data: Any, skipped: int
) -> None:
    status, text = run(capsys, task(*results, **data))
    assert status == 0 and "1 mask of 1 object; classes background, car\n" in text
    assert text.count("1 boxes") == skipped
    assert read_mask(Path("out/a.png")).tolist() == [[1] * 4 + [0] * 4] * 6


@pytest.mark.parametrize(
    "more", [(), ({"id": "k", "type": "labels", "value": {"labels": ["tree", "car"]}},)]
)
def test_a_shape_of_label_studio_may_be_of_several_classes(
    here: Path, capsys: pytest.CaptureFixture[str], more: Any
) -> None:
    """Each is kept where classes overlap; elsewhere the first one, and a line says so."""
    names = ["car"] if more else ["car", "tree"]
    shape = {**CAR, "id": "k", "value": {**HALF, "polygonlabels": names}}
    text = run(capsys, task(shape, *more))[1]
    assert "1 objects are of several classes: only their first one is kept; --overlap keep" in text
    assert read_mask(Path("out/a.png")).tolist() == [[1] * 4 + [0] * 4] * 6
    text = run(capsys, task(shape, *more), "--overlap", "keep", "-o", "kept")[1]
    assert "1 mask of 2 objects; classes background, car, tree\n" in text and "several" not in text
    for name in ("car", "tree"):
        assert read_mask(Path(f"kept/{name}/a.png")).tolist() == [[255] * 4 + [0] * 4] * 6


def labelme_folder(content: Any) -> Path:
    Path("json").mkdir()
    Path("json/a.json").write_text(json.dumps(content))
    return Path("json")


SMALL = np.ones((3, 5), np.uint8)


def save_mask(name: str, values: np.ndarray) -> Path:
    """Write a mask, and return the folder of the classes' folders."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(name)
    return Path("masks")


BOMB = '<!DOCTYPE a [<!ENTITY x "yyyyyyyyyyyyyyyyyyyyyyyy">]>'


def features(geometry: Any) -> Any:
    """Return the GeoJSON of an object."""
    return {"type": "FeatureCollection", "features": [{"type": "Feature", "geometry": geometry}]}


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "category": (lambda: coco({"category_id": 5, "segmentation": [SQUARE]}), "annotation 0: category_id 5 is not in categories"),
    "image id": (lambda: coco({"image_id": 5, "segmentation": [SQUARE]}), "annotation 0: image_id 5 is not in images"),
    "no coordinates": (lambda: coco([1, 1, float("nan"), 1, 5, 5]), "coordinate is no place in an image"),
    "far away": (lambda: coco([1, 1, 1e300, 1, 5, 5]), "coordinate is no place in an image"),
    "odd number": (lambda: coco([1, 1, 2]), "annotation 0: segmentation: a polygon has 3 numbers; expected x, y, x, y"),
    "other size": (lambda: coco(SQUARE, images=("sub/c.png",)) | {"images": [{"id": 0, "file_name": "c.png", "width": 6, "height": 8}]}, "image 'c.png': annotated as 6x8, the image is 8x6"),
    "twice": (lambda: coco(images=("a.png", "x/a.png")), "image 'x/a.png': a is annotated twice"),
    "two images of an id": (lambda: coco() | {"images": [{"id": 0, "file_name": name} for name in ("a.png", "b.png")]}, "image 0: its id is that of 'a.png' and of 'b.png'; give each its own"),
    "two categories of an id": (lambda: coco(categories=[{"id": 4, "name": name} for name in ("car", "bus")]), "category 4: its id is that of 'car' and of 'bus'; give each its own"),
    "none": (lambda: coco(images=()), "annotates none of the images in imgs"),
    "no categories": (lambda: coco(categories=[]), "file.json: no object is annotated (a prediction is none)"),
    "runs too long": (lambda: runs([1, 10**9]), "run lengths that are not those of"),
    "runs negative": (lambda: runs([-1, 49]), "run lengths that are not those of"),
    "runs beyond 53 bits": (lambda: runs([2**53]), "run lengths that are no whole numbers"),
    "runs not numbers": (lambda: runs(["a"]), "file.json: "),
    "runs of a large image": (lambda: runs([10**10], (10**5, 10**5)), "run lengths of an image of [100000, 100000]"),
    "text too long": (lambda: runs("o" * 9_000_000), "a run length of more than 60 bits"),
    "other size of a task": (lambda: studio_of(6, 8), "image 'a.png': annotated as 6x8, the image is 8x6"),
    "no label": (lambda: task(CAR | {"value": {**HALF, "polygonlabels": []}}), "image a.png: a shape without a label; "),
    "several images": (lambda: task(CAR | {"to_name": "image"}, image=["a.png", "b.png"], text="c"), "a task of several images, or of none; "),
    "boxes of Label Studio": (lambda: task(BOX, BOX), "file.json: only boxes, ellipses, lines or points (2): "),
    "a box of COCO": (lambda: coco({"bbox": [1, 1, 2, 2]}), "file.json: only boxes, ellipses, lines or points (1): "),
    "brush cut": (lambda: studio(rle=[0, 0, 0, 192, 57]), "task 1: annotation no. 1: result no. 1: a brush's run lengths end too early"),
    "brush of another size": (lambda: studio(rle=[255] * 9), "a brush of 4294967295 values for 8x6 pixels"),
    "another JSON": (lambda: {"shape": 1}, "not COCO, Labelme, QuPath or Label Studio's full JSON"),
    "another list": (lambda: [{"image": "a.png", "label": []}], "not COCO, Labelme, QuPath or Label Studio's full JSON"),
    "GeoJSON of a map": (lambda: {"type": "FeatureCollection", "crs": {}, "features": []}, "file.json: GeoJSON of a map (it has a crs), not of an image's pixels; train.py reads it itself: --masks file.json --class-field NAME"),
    "GeoJSON without outlines": (lambda: features({"type": "Polygon", "coordinates": [5]}), "file.json: object no. 1: geometry: coordinates is a list of 1; expected rings of points"),
    "GeoJSON of another depth": (lambda: features({"type": "MultiPolygon", "coordinates": [[[1, 2], [3, 4], [5, 6]]]}), "object no. 1: geometry: coordinates is a list of 1; expected rings of points"),
    "GeoJSON without geometry": (lambda: features({}), "object no. 1: geometry: type is missing"),
    "another GeoJSON": (lambda: {"type": "FeatureCollection", "features": [{"type": "Point"}]}, "not COCO, Labelme, QuPath or"),
    "Supervisely": (lambda: {"size": {}, "objects": []}, "of Supervisely (there, export COCO or masks), not COCO, Labelme, QuPath or"),
    "VIA": (lambda: {"a.png9": {"filename": "a.png", "regions": []}}, "of the VGG annotator (there, export COCO), not"),
    "VIA project": (lambda: {"_via_settings": {}, "_via_img_metadata": {}}, "of the VGG annotator (there, export COCO), not"),
    "Datumaro": (lambda: {"info": {}, "categories": {}, "items": []}, "of Datumaro (there, export COCO), not"),
    "Cityscapes": (lambda: {"imgHeight": 6, "imgWidth": 8, "objects": []}, "of Cityscapes (train on its masks, x_labelIds.png), not"),
    "predictions of COCO": (lambda: [{"image_id": 0, "category_id": 4, "bbox": [1, 1, 2, 2], "score": 0.5}], "of predictions for COCO (give the file with images and categories), not"),
    "COCO panoptic": (lambda: coco() | {"annotations": [{"image_id": 0, "file_name": "a.png", "segments_info": [{"id": 1, "category_id": 4}]}]}, "file.json: COCO panoptic, whose areas are in its PNG files; convert it to COCO with segmentation (panopticapi:"),
    "a bitmask of Label Studio": (lambda: task(CAR, {"type": "bitmasklabels", "value": {"imageDataURL": "data:image/png;base64,AA", "bitmasklabels": ["car"]}}), "image a.png: an area of Label Studio's bitmask tool, which is not read; draw it with the brush or as polygon"),
    "a vector of Label Studio": (lambda: task(VECTOR), "image a.png: an area of Label Studio's vector tool, which is not read"),
    "a line of Label Studio": (lambda: task({**VECTOR, "value": {**VECTOR["value"], "closed": False}}), "only boxes, ellipses, lines or points (1): "),
    "JSON-MIN": (lambda: [{"id": 1, "image": "/data/a.png", "tag": []}], "of Label Studio's JSON-MIN (there, export JSON), not"),
    "no JSON": (lambda: "hello", "file.json: is a text file, not a file of annotations"),
    "nested": (lambda: "[" * 100_000, "file.json: "),
    "a DOCTYPE": (lambda: cvat(before=BOMB), "a DOCTYPE, which may define entities"),
    "CVAT for video": (lambda: cvat().replace("image", "track"), "use the format 'CVAT for images 1.1'"),
    "the same, named": (lambda: cvat().replace("image", "track"), "file.xml: CVAT for video; use the format"),
    "CVAT 1.0": (lambda: cvat(version="1.0"), "use the format 'CVAT for images 1.1'"),
    "Pascal VOC": (lambda: "<annotation><object/></annotation>", "use the format 'CVAT for images 1.1'"),
    "no XML": (lambda: "<annotations>", "no element found"),
    "a mask that is wide": (lambda: cvat(MASK.format("1", 10**6)), "a mask of 1000000x1 pixels"),
    "a label that is not listed": (lambda: cvat(MASK.format("0, 8", 8)).replace('"car"', '"bus"'), "class 'bus' is not among background, car; add it"),
    "a class without name": (lambda: labels_of("3 0 0 1 0 1 1"), "class 3 is not in the names"),
    "pixels for shares": (lambda: labels_of("0 1 1 8 1 8 6"), "labels/a.txt, line 1: 8 is no part of a side, from 0 to 1"),
    "no labels": (lambda: Path(labels_of("")).rename("other.yaml") and Path("labels").rename("x") and Path("other.yaml"), "other.yaml: no image has labels, e.g. there is neither imgs/a.txt nor labels/a.txt; name or move the labels so"),
    "a label file of words": (lambda: labels_of("0 0 x"), "labels/a.txt, line 1: 'x' is no number"),
    "one of Labelme's files": (lambda: labelme_folder({"shapes": [{"points": []}], "imagePath": "a.png", "imageHeight": 6, "imageWidth": 8}), "json/a.json: shape no. 1: label is missing"),
    "a place of Labelme's": (lambda: labelme_folder({"shapes": [{"label": "car", "points": [[1, 1], [1e300, 1], [5, 5]]}], "imagePath": "a.png", "imageHeight": 6, "imageWidth": 8}), "json/a.json: shape no. 1: an outline's coordinate is no place in an image"),
    "an imagePath of another image": (lambda: labelme_folder({"shapes": [], "imagePath": "../imgs/b.png"}), "json/a.json: its imagePath is '../imgs/b.png', but it has the name of another image"),
    "a file among Labelme's": (lambda: labelme_folder([1]), "json/a.json: not a file of Labelme; move it elsewhere"),
    "a file among Labelme's without shapes": (lambda: labelme_folder({"imagePath": "a.png"}), "json/a.json: not a file of Labelme; move it elsewhere"),
    "key points of YOLO": (lambda: labels_of("0 1 1 1 1 1 1").write_text("names: [car]\nkpt_shape: [4, 2]") and Path("data.yaml"), "data.yaml: key points (kpt_shape), which are no outlines; export segmentation labels"),
    "no data set": (lambda: labels_of("").write_text("a: 1") and Path("data.yaml"), "has no names of classes"),
    "an empty folder": (lambda: Path("imgs/sub"), "imgs/sub: has neither .json files of Labelme nor a folder for each class"),
    "a mask of no image": (lambda: save_mask("masks/car/x.png", SMALL), "masks: image 'x.png' is not in imgs"),
    "a JPEG mask": (lambda: save_mask("masks/car/a.jpg", SMALL), "masks/car/a.jpg: lossy compression changes values; save masks as PNG"),
    "masks of two sizes": (lambda: save_mask("masks/car/a.png", SMALL) and save_mask("masks/tree/a.png", SMALL.T), "masks/tree/a.png: 3x5, another mask is 5x3; masks of one image have one size"),
    "a small mask": (lambda: save_mask("masks/car/a.png", SMALL), "image 'a.png': annotated as 5x3, the image is 8x6"),
    "two masks of a class": (lambda: save_mask("masks/car/a.png", SMALL) and save_mask("masks/car/a.tif", SMALL), "images of one name: masks/car/a.png and masks/car/a.tif"),
    "a broken mask": (lambda: (Path("masks/car").mkdir(parents=True), Path("masks/car/a.png").write_text("x")) and Path("masks"), "masks/car/a.png: is a text file, not a readable image"),
    "no file": (lambda: Path("nowhere.json"), "nowhere.json: No such file or directory"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line(here: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    make, said = BAD[name]
    status, text = run(capsys, make())
    assert status == 2 and text.startswith("error: ") and text.count("\n") == 1
    assert said in text and not Path("out").exists() and not list(here.glob(".out*"))


@pytest.mark.parametrize("names", ["[7, no, 007]", "{0: 7, 1: no, 2: 007}"])
def test_names_of_yolo_that_yaml_takes_for_no_text(
    here: Path, capsys: pytest.CaptureFixture[str], names: str
) -> None:
    file = labels_of("1 0 0 1 0 1 1")
    file.write_text(f"names: {names}\n")
    status, text = run(capsys, file)
    assert status == 0 and "; classes background, 7, no, 007\n" in text


def test_an_empty_outline_of_coco_is_left_out(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = run(capsys, coco(SQUARE, {"segmentation": [[]]}))
    assert status == 0 and "1 boxes, ellipses, lines or points have no outline: left out" in text


def test_objects_without_a_pixel_are_counted(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fractions of the sides in place of pixels are such objects, and lines."""
    status, text = run(capsys, coco(SQUARE, [0.1, 0.1, 0.4, 0.1, 0.4, 0.4], [1, 1, 5, 1, 3, 1]))
    assert status == 0 and "2 objects have no pixel: " in text


def test_outlines_in_fractions_of_the_sides_are_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those around the centre of the first pixel are that pixel, and no other is."""
    large = [0.1, 0.1, 0.9, 0.1, 0.9, 0.9, 0.1, 0.9]
    status, text = run(capsys, coco(large, large, SQUARE, [0.1, 0.1, 0.4, 0.1, 0.4, 0.4]))
    said = "2 objects are only the image's first pixel: if their outlines are in fractions of the sides"
    assert status == 0 and said in text and "1 objects have no pixel: " in text
    assert "first pixel" not in run(capsys, coco(SQUARE), "-o", "second")[1]


POINTS = [[1, 1], [5, 1], [5, 5], [1, 5]]
RUNS = {"counts": [7, 4, 2, 4, 2, 4, 2, 4, 19]}
SAME: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "a flat list": (SQUARE, {}, {}),
    "text": ([*map(str, SQUARE)], {}, {}),
    "pairs": (POINTS, {}, {}),
    "lists of pairs": ([POINTS], {}, {}),
    "a line beside": ([[1, 1, 5, 5], SQUARE, []], {}, {}),
    "run lengths": (RUNS, {}, {}),
    "run lengths in a list": ([RUNS | {"size": ["6", 8.0]}], {}, {}),
    "no size": ([SQUARE], {"height": None}, {}),
    "a size of 0": ([SQUARE], {"height": 0, "width": 0}, {}),
    "a size as text": ([SQUARE], {"height": "6", "width": "8"}, {}),
    "a size as fraction": ([SQUARE], {"height": 6.0, "width": 8.0}, {}),
    "ids as text": ([SQUARE], {"id": "0"}, {"category_id": "4", "iscrowd": "0"}),
    "ids as fractions": ([SQUARE], {}, {"category_id": 4.0, "image_id": 0.0, "iscrowd": False}),
}


@pytest.mark.parametrize("name", SAME)
def test_forms_of_coco_that_programs_write(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """All are one square."""
    outline, image, annotation = SAME[name]
    content = coco({"segmentation": outline, **annotation})
    content["images"][0] |= image
    status, text = run(capsys, content)
    assert status == 0 and "1 mask of 1 object" in text, text
    expected = np.zeros((6, 8), int)
    expected[1:5, 1:5] = 1
    np.testing.assert_array_equal(read_mask(Path("out/a.png")), expected)


@pytest.mark.parametrize(("used", "classes"), [(False, "cell"), (True, "cells, cell")])
def test_a_root_category_without_objects_is_no_class(
    here: Path, capsys: pytest.CaptureFixture[str], used: bool, classes: str
) -> None:
    """As Roboflow writes it; with an object, or without a category below it, it is one."""
    categories = [
        {"id": 0, "name": "cells", "supercategory": "none"},
        {"id": 1, "name": "cell", "supercategory": "cells"},
    ]
    objects = [{"category_id": k, "segmentation": [SQUARE]} for k in ([0, 1] if used else [1])]
    said = run(capsys, coco(*objects, categories=categories))[1]
    assert f"classes background, {classes}\n" in said
    assert ("category cells has no object and is above others" in said) is not used


def test_labelme_may_leave_out_the_image(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("json/.trash").mkdir(parents=True)
    Path("json/.trash/b.json").write_text("?")
    shape = {"label": "car", "points": POINTS}
    Path("json/a.json").write_text(json.dumps({"shapes": [shape], "imagePath": None}))
    assert run(capsys, Path("json"))[0] == 0
    assert read_mask(Path("out/a.png")).sum() == 16


def test_nothing_is_overwritten(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    Path("out/mine.txt").write_text("mine")
    assert run(capsys, coco(SQUARE)) == (2, "error: out: already exists; use another --output\n")
    Path("out/mine.txt").unlink()
    assert run(capsys, coco(SQUARE))[0] == 0
    status, text = run(capsys, coco(SQUARE), "-o", "file.json/out")
    assert status == 2 and text.endswith(
        "file.json is a file; choose another folder with --output\n"
    )


def test_names_that_may_be_several(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("imgs/other").mkdir()
    Image.new("RGB", (8, 6)).save("imgs/other/c.png")
    status, text = run(capsys, coco(SQUARE, images=("c.png",)))
    assert status == 2 and "image 'c.png' may be other/c or sub/c" in text
    Image.new("RGB", (8, 6)).save("imgs/a.jpg")
    status, text = run(capsys, coco(SQUARE))
    assert status == 2 and "images of one name: imgs/a.jpg and imgs/a.png; keep one" in text


def test_other_shapes_of_labelme_and_cvat(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Boxes are counted, tags are not; a label's odd name becomes one of a line."""
    box = '<box label="car" xtl="1" ytl="1" xbr="2" ybr="2" z_order="0"/><tag label="car"/>'
    status, text = run(capsys, cvat(box + MASK.format("0, 8", 8)))
    assert status == 0 and "1 boxes" in text
    Path("out").rename("cvat")
    points = [[1, 1], [5, 1], [5, 5]]
    shapes = [
        {"label": "=x,\n y", "points": points, "shape_type": "polygon"},
        {"label": "Background", "points": points[:1] * 3},
        {"label": "_background_", "points": [[4, 1], [5, 1], [5, 5], [4, 5]]},
        {"label": "b", "points": points[:2], "shape_type": "line"},
    ]
    content = {"shapes": shapes, "imagePath": "a.png", "imageHeight": 6, "imageWidth": 8}
    status, text = run(capsys, content)
    assert status == 0 and "1 boxes" in text and "classes background, =x, y\n" in text
    assert Path("out/palette.csv").read_text() == 'background,#000000\n"=x, y",#ffffff\n'
    assert read_mask(Path("out/a.png"))[1].tolist() == [0, 1, 1, 1, 0, 0, 0, 0]
