"""The split that data.yaml names is that of the list which an import writes."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from PIL import Image

from unet_ddp.__main__ import main
from unet_ddp.extras.annotations.yolo_splits import find_split

FOLDERS = {"train": "training", "valid": "validation", "test": "test"}
YAML = "names: [car, tree]\ntrain: ../train/images\nval: ../valid/images\ntest: ../test/images\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an export as Roboflow has it: two images in each folder, one with an object."""
    monkeypatch.chdir(tmp_path)
    for folder in FOLDERS:
        for kind in ("images", "labels"):
            Path("set", folder, kind).mkdir(parents=True)
        for k in (0, 1):
            Image.new("RGB", (8, 6)).save(f"set/{folder}/images/{k}.png")
        Path("set", folder, "labels/0.txt").write_text("0 0 0 1 0 1 1\n")
    Path("set/data.yaml").write_text(YAML)
    return tmp_path


@pytest.mark.parametrize("flags", [[], ["--empty", "all"], ["--empty", "all", "--overlap", "keep"]])
def test_images_to_test_on_are_not_trained_on(
    here: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    status = main(["import", "set/data.yaml", "--images", "set", "-o", "out", *flags])
    out = capsys.readouterr().out
    assert status == 0 and "split: of data.yaml" in out and "train.py --list out/pairs.csv" in out
    with Path("out/pairs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == (6 if flags else 3)
    for row in rows:
        assert row["split"] == FOLDERS[Path(row["image"]).parts[-3]]


@pytest.mark.parametrize(
    "text",
    [
        "names: [car]\n",
        "names: [car]\ntrain: ../train/images\ntest: ../test/images\n",  # none to validate on
        "names: [car]\ntrain: ../train/images\nval: ../train/images\n",
        "names: [car]\ntrain: train.txt\nval: [1, null, '', ..]\n",
    ],
)
def test_what_names_no_side_of_each_image_is_no_split(
    here: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    Path("set/data.yaml").write_text(text)
    assert main(["import", "set/data.yaml", "--images", "set", "-o", "out"]) == 0
    out = capsys.readouterr().out
    assert "split: " not in out and ("left out" in out) == ("val: ../train" in text)
    assert Path("out/pairs.csv").read_text().startswith("image,mask\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: train.txt\nval: val.txt\n", "train.txt"),
        ("train: ../train/images\nval: [lists/val.TXT]\n", "lists/val.TXT"),
        ("train: ../train/images\nval: ../valid/images\ntest: test.txt\n", ""),
    ],
)
def test_a_split_by_lists_of_files_is_not_dropped_in_silence(
    here: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    """Ultralytics' coco.yaml has such; images to test on are in no list that is needed."""
    Path("set/test/labels/0.txt").unlink()
    Path("set/data.yaml").write_text(f"names: [car]\n{text}")
    assert main(["import", "set/data.yaml", "--images", "set", "-o", "out"]) == 0
    out = capsys.readouterr().out
    assert (f"data.yaml splits by lists of files, as {said!r}, which are not read" in out) == bool(
        said
    )
    assert ("split: of data.yaml" in out) != bool(said)


@pytest.mark.parametrize(
    "places",
    [
        ("images/train", "images/val"),
        ("/data/of another/machine/set/images/train", "D:\\set\\images\\val"),
        (["images/train/a", "images/train/b"], "images/val/"),
        ("train", "val"),
    ],
)
def test_folders_of_other_machines_and_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: tuple[object, object]
) -> None:
    monkeypatch.chdir(tmp_path)
    images = {name: Path("images", f"{name}.png") for name in ("train/a/0", "train/b/0", "val/0")}
    expected = ["training", "training", "validation"]
    found, _ = find_split(dict(zip(("train", "val"), places, strict=True)), images, images)
    assert list(found.values()) == expected


@pytest.mark.parametrize("flags", [[], ["--empty", "all"]])
def test_images_without_labels_do_not_decide(
    here: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """YOLO's data.yaml may have no test; what is in none of its folders is not trained on."""
    Path("set/data.yaml").write_text(YAML.replace("test:", "# test:"))
    argv = ["import", "set/data.yaml", "--images", "set", "-o", "out", *flags]
    Path("set/test/labels/0.txt").unlink()
    assert main(argv) == 0
    assert "split: of data.yaml" in capsys.readouterr().out
    with Path("out/pairs.csv").open(newline="") as file:
        sides = [row["split"] for row in csv.DictReader(file)]
    assert sorted(set(sides)) == [*["test"][: len(flags)], "training", "validation"]
    Path("set/test/labels/0.txt").write_text("0 0 0 1 0 1 1\n")
    shutil.rmtree("out")
    assert main(argv) == 0
    said = "split of data.yaml left out: set/test/images/0.png is in none of its folders"
    assert said in capsys.readouterr().out
