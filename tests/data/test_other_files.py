"""Files whose ending no reader takes: those that may be images are named, in training and in prediction."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from unet_ddp.data.matching import Report, find_pairs
from unet_ddp.data.other_files import find_other_images
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url, put
from unet_ddp.prediction.paths import find_images

ADVICE = ": rename or export as .jpg, .png or .tif"


def draw(*names: str, form: str = "PNG") -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(name, format=form)


def predicted(folder: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What predict prints of the images of a folder."""
    capsys.readouterr()
    assert find_images([folder])
    return capsys.readouterr().out


def trained(folder: str) -> list[str]:
    """The notes of train and doctor on a folder, whose masks are in m."""
    report = Report(collects=True)
    find_pairs(Path(folder), Path("m"), report)
    return report.notes


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    draw("p/a.png", "m/a.png", "m/b.png")
    return tmp_path


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP", "GIF"])
@pytest.mark.parametrize("name", ["b.jfif", "b.image", "b"])
def test_an_image_with_another_ending_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, form: str
) -> None:
    draw(f"p/{name}", form=form)
    line = f"left out of p: 1 file with another ending, e.g. p/{name}{ADVICE}"
    assert predicted("p", capsys) == f"{line}\n"
    assert trained("p") == [line, "1 mask without image, e.g. m/b.png"]


@pytest.mark.parametrize("name", ["b.heic", "b.JP2", "b.czi"])
def test_formats_that_are_not_read_are_known_by_name(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    Path("p", name).write_bytes(b"x")
    assert f"1 file with another ending, e.g. p/{name}" in predicted("p", capsys)
    assert f"1 file with another ending, e.g. p/{name}" in trained("p")[0]


def test_what_a_pattern_matches_but_no_reader_takes_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw("p/b.jfif", "p/deep/c.png")
    assert predicted("p/*", capsys) == (
        f"left out of p/*: 1 file with another ending, e.g. p/b.jfif{ADVICE}\n"
    )
    assert predicted("p/*.png", capsys) == ""
    with pytest.raises(
        UserError, match=r"^p/\*\.jfif: matches no image; 1 file with another ending"
    ):
        find_images(["p/*.jfif"])


def test_what_is_no_image_or_of_one_is_not_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw("p/a.jfif", "p/a.png.ovr", "p/a.png.bak", "p/.hidden", "p/._b.jfif")  # of a.png, or hidden
    for name in ("b.csv", "b.txt", "b.json", "Thumbs.db", "b.geojson", "b.pdf", "README", "b.tfw"):
        Path("p", name).write_text("words")
    Path("p/folder.heic").mkdir()
    os.mkfifo("p/pipe")
    os.mkfifo("p/pipe.data")
    assert predicted("p", capsys) == ""
    assert trained("p") == ["1 mask without image, e.g. m/b.png"]


def test_images_in_sub_folders_are_named_to_who_predicts(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw("p/day 2/deep/b.png")
    assert predicted("p", capsys) == (
        "left out of p: sub-folders, e.g. p/day 2/deep: name them, or 'p/**/*' for all\n"
    )
    assert len(find_images(["p", "p/day 2/deep"])) == 2 and capsys.readouterr().out == ""
    draw("p/c.jfif")
    assert predicted("p", capsys) == (
        f"left out of p: 1 file with another ending, e.g. p/c.jfif{ADVICE}; sub-folders, e.g. p/day 2/deep: name "
        "them, or 'p/**/*' for all\n"
    )
    assert not any("sub-folder" in line for line in trained("p"))  # which takes them
    draw("q/x/a.png")
    with pytest.raises(
        UserError, match=r"^q: contains no images \(.*\); sub-folders, e\.g\. q/x: "
    ):
        find_images(["q"])


def test_sub_folders_of_masks_outputs_and_runs_are_not_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw("p/Masks/x.png", "p/labels/x.png", "p/seg/a.png", "p/.git/x.png", "p/@eaDir/x.png")
    draw(
        "p/out/a_mask.png",
        "p/out/a_overlay.png",
        "p/out/a_probability_car.png",
        "p/run/samples.png",
    )
    Path("p/run/best.pt").touch()
    Path("p/words").mkdir()
    Path("p/words/x.txt").touch()
    assert predicted("p", capsys) == ""


def test_a_pack_is_named_with_what_to_type(here: Path) -> None:
    Path("pack").mkdir()
    Path("pack/pack.index").touch()
    Path("pack/shard-000000.tar").touch()
    with pytest.raises(UserError) as caught:
        find_images(["pack"])
    assert str(caught.value) == (
        "pack: is a pack: score it with python -m unet_ddp evaluate --images pack, or predict the folder of its images"
    )


@pytest.mark.usefixtures("memory_store")
def test_at_an_address_only_names_are_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    url = Url("s3://bucket/set")
    for name in ("i/a.png", "i/b.jfif", "i/c.txt", "i/d", "i/sub/e.png", "m/a.png", "m/sub/e.png"):
        put(url / name, b"\x89PNG")
    line = f"left out of {url}/i: 1 file with another ending, e.g. {url}/i/b.jfif{ADVICE}"
    assert predicted(f"{url}/i", capsys) == f"{line}\n"
    report = Report(collects=True)
    find_pairs(url / "i", url / "m", report)
    assert line in report.notes


def test_of_many_files_a_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each ending, and of few endings."""
    asked = []
    monkeypatch.setattr(os.path, "isfile", asked.append)
    paths = [f"p/{k}.txt" for k in range(1000)] + [f"p/scan.{k}" for k in range(1000)]
    assert find_other_images(paths, ["p/a.png"]) == []
    assert 0 < len(asked) < 100
