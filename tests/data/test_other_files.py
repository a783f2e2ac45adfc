"""Files whose ending no reader takes: those that may be images are named, in training and in prediction."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.object_store import running_web
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import Report, find_pairs
from unet_ddp.data.other_files import find_other_images
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url, put
from unet_ddp.prediction.outputs.mask import write_mask
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


def test_outputs_in_sub_folders_are_not_named_once_their_images_are_gone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endings = "mask.png", "mask.tif", "overlay.png", "probability_car.png", "mask_car.png"
    draw(*(f"p/out/gone_{ending}" for ending in endings))
    mask, labels = np.zeros((4, 4), np.uint8), Labels((0, 255))
    for name in ("free.png", "free.tif"):  # as --output names them
        write_mask(mask, labels, here / "p/out" / name, mark="0123.4567")
    assert predicted("p", capsys) == ""
    draw("p/out/b.png")
    assert "sub-folders, e.g. p/out: " in predicted("p", capsys)


def test_sub_folders_are_not_named_if_their_images_are_inputs_in_any_way(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw("p/sub/b.png", "p/sub/c.png")
    Path("list.txt").write_text("p/sub/b.png\np/sub/c.png\n")
    Path("link").symlink_to("p")
    named = (
        ["p", "p/sub/*.png"],
        ["p", "p/sub/b.png", "p/sub/c.png"],
        ["p", "list.txt"],
        [str(here / "p"), "p/sub"],
        ["p/sub", str(here / "p")],
        ["p", "./p/../p/sub"],
        ["p", "link/sub"],
    )
    for inputs in named:
        assert len(find_images(inputs)) == 3
        assert capsys.readouterr().out == "", inputs
    assert len(find_images(["p", "p/sub/b.png"])) == 2
    assert "sub-folders, e.g. p/sub: " in capsys.readouterr().out
    monkeypatch.chdir("p")
    assert len(find_images([".", "./sub/../sub"])) == 3
    assert capsys.readouterr().out == ""
    draw("q/x/a.png")
    with pytest.raises(UserError, match=r"^q: contains no images \([^;]*\); export others"):
        find_images(["q", "q/x/a.png"])


def test_working_files_of_masks_are_not_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw("h/a.png", "h/a_mask.png", "h/b.png", "h/b_mask.png")
    for name in ("a", "a_mask", "b", "b_mask"):
        Path(f"h/{name}.psd").write_bytes(b"x")
    for folder in (Path("h"), Path("m")):  # of the masks
        report = Report(collects=True)
        find_pairs(Path("h"), folder, report)
        assert not any("left out of" in note for note in report.notes)
    assert predicted("h", capsys) == ""
    Path("h/c.psd").write_bytes(b"x")
    assert "left out of h: 1 file with another ending, e.g. h/c.psd" in predicted("h", capsys)


def test_a_pack_at_an_address_is_named_to_who_names_its_index(here: Path) -> None:
    """A web server lists no folders, so its index is what can be named."""
    Path("pack").mkdir()
    Path("pack/pack.index").write_bytes(bytes(range(256)))
    with running_web(here) as web, pytest.raises(UserError) as caught:
        find_images([f"{web}/pack/pack.index"])
    assert str(caught.value).startswith(
        f"{web}/pack: is a pack: score it with python -m unet_ddp evaluate --images {web}/pack, or"
    )


def test_a_pack_is_named_to_who_names_its_files_or_the_folder_around_it(here: Path) -> None:
    draw("o/pack/x.txt")
    Path("o/pack/pack.index").touch()
    Path("o/pack/shard-000000.tar").touch()
    for name in ("o", "o/*", "o/pack/*", "o/pack/*.tar", "o/pack/*.png", "o/pack/pack.index"):
        with pytest.raises(UserError, match=r"^o/pack: is a pack: .* --images o/pack, or"):
            find_images([name])
    with pytest.raises(UserError, match=r"^o: contains no images but a pack; use --images o/pack "):
        trained("o")
    for folder in ("o/plain", "o/pack/plain"):
        Path(folder).mkdir()
        with pytest.raises(UserError, match=rf"^{folder}: contains no images \("):
            find_images([folder])


def test_numbers_as_endings_are_one_kind_and_all_files_are_counted(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(*(f"p/slice.{k:03}" for k in range(100)))
    assert "left out of p: 100 files with another ending" in predicted("p", capsys)
    draw(*(f"p/scan.x{k}" for k in range(50)))
    assert "left out of p: 150 files with another ending" in predicted("p", capsys)
