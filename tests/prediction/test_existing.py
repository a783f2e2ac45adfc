"""Files of earlier jobs: which count, and what is said of masks of other networks."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.prediction.models import noise, write_model, write_photo
from tests.prediction.test_predict import run
from tests.ranks import Ranks, call_main
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.read import read_mask
from unet_ddp.prediction.inspection import look
from unet_ddp.prediction.outputs.mask import write_mask
from unet_ddp.prediction.predictor import Predictor

SKIP = ("p", "-o", "out", "--skip-existing")


@pytest.fixture
def photos(here: Path) -> Path:
    for name in "abc":
        write_photo(here / "p" / f"{name}.png")
    return here


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change_a_byte(path: Path) -> None:
    """Header and end are whole: only who decodes the pixels sees it."""
    content = bytearray(path.read_bytes())
    start = content.index(b"IDAT") + 6
    content[start : start + 20] = bytes(20)
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": cut,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "no picture": lambda path: path.write_bytes(b"<html>503</html>"),
}


@pytest.mark.parametrize("form", ["png", "tif"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_mask_is_predicted_again(
    photos: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], form: str
) -> None:
    argv = [*SKIP, "--mask-format", form, "--rle", "r.csv"]
    assert run(*argv) == 0
    whole = Path("r.csv").read_text()
    Path("r.csv").unlink()
    mask = Path(f"out/b_mask.{form}")
    before = mask.read_bytes()
    damage(mask)
    kept = Path(f"out/a_mask.{form}").stat().st_mtime_ns
    capsys.readouterr()
    assert run(*argv) == 0
    assert mask.read_bytes() == before and Path("r.csv").read_text() == whole
    assert Path(f"out/a_mask.{form}").stat().st_mtime_ns == kept
    lines = capsys.readouterr().out.splitlines()
    assert (
        f"predicting again 1 file cut off, or of another size than the image, e.g. {mask}" in lines
    )
    assert "2 images skipped: the files already exist" in lines


def test_a_mask_whose_pixels_are_damaged_is_predicted_again_when_they_are_needed(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SKIP, "--rle", "r.csv") == 0
    before = Path("out/b_mask.png").read_bytes()
    change_a_byte(Path("out/b_mask.png"))
    assert run(*SKIP, "--rle", "s.csv") == 0
    assert Path("out/b_mask.png").read_bytes() == before
    assert Path("s.csv").read_text() == Path("r.csv").read_text()
    assert "predicting again: out/b_mask.png: corrupt or truncated" in capsys.readouterr().out


def test_a_mask_of_another_size_than_its_image_is_predicted_again(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SKIP, "--overlay") == 0
    write_photo(photos / "p/b.png", (20, 30))
    assert run(*SKIP, "--overlay", "--rle", "r.csv") == 0
    for name in ("mask", "overlay"):
        with Image.open(f"out/b_{name}.png") as picture:
            assert picture.size == (30, 20)
    assert "e.g. out/b_mask.png" in capsys.readouterr().out


def test_a_mask_of_another_size_that_no_network_has_marked_is_not_replaced(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be a person's work."""
    Path("out").mkdir()
    drawn = Path("out/b_mask.png")
    Image.new("L", (7, 5)).save(drawn)
    before = drawn.read_bytes()
    assert run(*SKIP) == 2
    assert drawn.read_bytes() == before and [*Path("out").iterdir()] == [drawn]
    assert "error: out/b_mask.png: 7x5 pixels, its image " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["b_overlay.png", "b_probabilities.npy"])
def test_another_damaged_file_is_written_again(
    photos: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    argv = [*SKIP, "--overlay", "--probabilities", "npy"]
    assert run(*argv) == 0
    path, mask = Path("out", name), Path("out/b_mask.png")
    before, made = path.read_bytes(), mask.read_bytes()
    cut(path)
    assert run(*argv) == 0
    assert path.read_bytes() == before and mask.read_bytes() == made
    assert f"e.g. {path}" in capsys.readouterr().out


def test_a_mask_that_a_person_has_corrected_is_never_replaced(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also not by a job that adds another output: the mask is compared, as without --skip-existing."""
    assert run(*SKIP) == 0
    corrected = np.full((41, 67), 255, np.uint8)
    Image.fromarray(corrected).save("out/b_mask.png")
    before = Path("out/b_mask.png").read_bytes()
    assert run(*SKIP, "--rle", "r.csv") == 0
    with Path("r.csv").open(newline="") as file:
        assert [row["rle_mask"] for row in csv.DictReader(file)][1] == f"1 {41 * 67}"
    assert run(*SKIP, "--overlay") == 2
    assert Path("out/b_mask.png").read_bytes() == before
    assert capsys.readouterr().err == (
        "error: out/b_mask.png: already exists, and differs from this prediction; use another --output, or "
        "--overwrite in place of --skip-existing\n"
    )


def test_masks_of_another_network_are_named(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of equal classes they are kept, with a warning; a network of others is refused."""
    write_model(photos / "other.pt", Labels((0, 255)), seed=5)
    write_model(photos / "three.pt", Labels((0, 1, 2)))
    shutil.copy("checkpoints/best.pt", "copy.pt")
    assert run(*SKIP) == 0
    before = Path("out/a_mask.png").read_bytes()
    write_photo(photos / "p/d.png")
    assert run(*SKIP, "-m", "copy.pt") == 0
    assert "another network" not in capsys.readouterr().out
    assert run(*SKIP, "-m", "other.pt") == 0
    assert (
        "warning: keeping 4 masks of another network, e.g. out/a_mask.png; to have all of one, use another "
        "--output, or --overwrite in place of --skip-existing\n" in capsys.readouterr().out
    )
    assert run(*SKIP, "-m", "three.pt", "--polygons", "l.geojson") == 2
    assert capsys.readouterr().err == (
        "error: out/a_mask.png: was made by a network of other classes; use another --output, or --overwrite in "
        "place of --skip-existing\n"
    )
    assert Path("out/a_mask.png").read_bytes() == before and not Path("l.geojson").exists()
    for path in Path("out").iterdir():  # as another program, or an earlier version, writes them
        with Image.open(path) as picture:
            picture.save(path)
    assert run(*SKIP, "-m", "other.pt") == 0
    assert "another network" not in capsys.readouterr().out
    write_model(photos / "seven.pt", Labels((0, 7)))
    Image.fromarray(np.full((41, 67), 9, np.uint8)).save("out/a_mask.png")
    assert run(*SKIP, "-m", "seven.pt", "--rle", "l.csv") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: out/a_mask.png: unknown mask value 9 (2747 pixels)")
    assert said.endswith("or name another --output, if another network has made it\n")


@pytest.mark.parametrize("form", ["png", "tif"])
def test_a_mask_without_a_mark_stays_if_it_is_the_same(
    photos: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """Masks of version 1.0 have none."""
    mask = Path(f"out/a_mask.{form}")
    prediction = Predictor.from_checkpoint("checkpoints/best.pt")("p/a.png")
    write_mask(prediction.mask, prediction.labels, mask)
    assert look(mask) == ((41, 67), "")
    before = mask.read_bytes()
    argv = ["p", "-o", "out", "--mask-format", form]
    assert run(*argv) == 0
    assert f"kept {mask}" in capsys.readouterr().out and mask.read_bytes() == before
    assert run(*argv, "--overwrite") == 0
    seen = look(mask)
    assert seen is not None and f"unet_ddp {seen.mark}".encode() in mask.read_bytes()
    assert len(seen.mark) > 9 and np.array_equal(np.asarray(read_mask(mask)), prediction.mask * 255)


def test_what_other_programs_write_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    ids = noise(300, 200)[..., 0]
    for how in (
        {},
        {"bigtiff": True},
        {"tile": (64, 64), "compression": "zlib"},
        {"byteorder": ">"},
    ):
        tifffile.imwrite(path, ids, **how)  # type: ignore[arg-type]
        assert look(path) == ((300, 200), "")
        cut(path)
        assert look(path) is None
    tifffile.imwrite(path, np.stack([ids] * 3), photometric="minisblack")
    assert look(path) is not None
    Image.fromarray(ids).save(tmp_path / "b.png", format="JPEG")
    assert look(tmp_path / "b.png") == ((300, 200), "")
    (tmp_path / "c.json").write_text("{}")
    assert look(tmp_path / "c.json") is not None


LISTS = ["--rle", "r.csv", "--polygons", "p.geojson", "--label-studio", "s.json"]


def test_a_finished_job_is_repeated_by_the_same_line(photos: Path) -> None:
    """Also with further images, and after a person has corrected none of the masks."""
    argv = [*SKIP, *LISTS, "--annotations", "c.json"]
    assert run(*argv) == 0
    before = {name: Path(name).read_bytes() for name in [*LISTS[1::2], "c.json"]}
    assert run(*argv) == 0
    assert {name: Path(name).read_bytes() for name in before} == before
    write_photo(photos / "p/aa.png")
    assert run(*SKIP, *LISTS) == 0
    for name in LISTS[1::2]:
        assert b"aa.png" in Path(name).read_bytes()
    Path("r.csv").write_bytes(b"")  # of a copy that was interrupted
    assert run(*SKIP, *LISTS) == 0 and b"aa.png" in Path("r.csv").read_bytes()


def test_a_list_with_other_lines_stays_and_the_remedy_can_be_typed(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = "use another --rle, or --overwrite in place of --skip-existing\n"
    mine = b"img,rle_mask\nmine.png,1 2\n"  # as a sample of a challenge
    Path("r.csv").write_bytes(mine)
    assert run(*SKIP, "--rle", "r.csv") == 2
    assert capsys.readouterr().err == (
        f"error: r.csv: already exists, and has lines that the new one lacks; {ways}"
    )
    assert Path("r.csv").read_bytes() == mine
    assert run(*SKIP, "--rle", "s.csv") == 0
    Path("notes.txt").write_text("by hand")
    assert run("p", "-o", "new", "--skip-existing", "--rle", "notes.txt") == 2
    assert capsys.readouterr().err == f"error: notes.txt: already exists; {ways}"
    assert not Path("new").exists() and Path("notes.txt").read_text() == "by hand"
    assert run("p", "-o", "out", "--overwrite", "--rle", "r.csv") == 0
    assert Path("r.csv").read_bytes() == Path("s.csv").read_bytes()


def test_two_processes_say_it_once(photos: Path, ranks: Ranks) -> None:
    argv = [*SKIP, "--device", "cpu", "--rle"]
    assert run(*argv, "one.csv") == 0
    expected = {path: path.read_bytes() for path in Path("out").iterdir()}
    for path in expected:
        cut(path)
    outcomes = ranks.run(2, call_main, "predict", [*argv, "two.csv"], str(photos))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    said = "".join(out + err for _, out, err in outcomes)
    assert said.count("predicting again") == said.count("predicting again 3 files") == 1
    assert {path: path.read_bytes() for path in Path("out").iterdir()} == expected
    assert Path("two.csv").read_bytes() == Path("one.csv").read_bytes()
