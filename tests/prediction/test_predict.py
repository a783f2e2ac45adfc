"""predict.py as people use it."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.conftest import another_user
from tests.extras.outputs.test_rle import decode
from tests.prediction.models import noise, write_model, write_photo
from tests.ranks import Ranks, call_main, warm_context
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.commands import predict
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.read import read_mask
from unet_ddp.distributed.world import World
from unet_ddp.files import replacing
from unet_ddp.prediction import summary
from unet_ddp.prediction.outputs import mask as mask_module
from unet_ddp.prediction.pipeline import Outcome


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as stop:
        predict.main(argv)
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_one_image_needs_no_flag(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_photo(here / "image.png")
    assert run("image.png") == 0
    mask = np.asarray(Image.open("image_mask.png"))
    assert mask.shape == (41, 67)
    assert set(np.unique(mask)) == {0, 255}
    said = capsys.readouterr()
    assert said == ("model: checkpoints/best.pt\nimage.png -> image_mask.png\n", "")
    write_model(here / "checkpoints" / "cells" / "best.pt", Labels((0, 255)))
    assert run("image.png", "--overwrite") == 0
    assert capsys.readouterr().out.startswith(
        "model: checkpoints/cells/best.pt (the newest of 2 runs; --model takes another)\n"
    )


@pytest.mark.parametrize(
    "labels",
    [Labels((0, 1)), Labels((0, 3, 7), ignore=9), Labels((0xFF0000, 0x00FF00, 0x0000FF), rgb=True)],
    ids=str,
)
def test_masks_have_the_training_masks_values(here: Path, labels: Labels) -> None:
    write_model(here / "m.pt", labels)
    write_photo(here / "a.jpg")
    assert run("a.jpg", "-m", "m.pt", "-o", "out.png") == 0
    found = set(np.unique(read_mask(here / "out.png")).tolist())
    assert found <= set(labels.values) and len(found) > 1


def test_the_next_images_to_label(here: Path) -> None:
    for name in ("a.png", "b.jpg", "c.tif"):
        write_photo(here / "photos" / name, (30, 40 + ord(name[0])))
    assert run("photos", "-o", "out", "--rank", "next.csv") == 0
    with Path("next.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["image"] for row in rows} == {"photos/a.png", "photos/b.jpg", "photos/c.tif"}
    order = [float(row["uncertainty"]) for row in rows if not row["nearly_equal_to"]]
    assert order == sorted(order, reverse=True) and all(0 < value <= 1 for value in order)


def test_images_that_a_list_does_not_have_are_counted(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mean over the list would not be the mean over the images."""
    for k in range(3):
        Image.fromarray(noise(40, 50, k)).save(here / f"{k}.png")
    write_model(here / "m.pt", Labels((0, 255)))
    names = [f"{k}.png" for k in range(3)]
    how = ("-m", "m.pt", "-o", "out", "--polygons", "p.geojson", "--rle", "r.csv")
    for threshold, line in (("0.999999", "3 images, 3 without an entry"), ("0.5", "3 images")):
        assert run(*names, *how, "--threshold", threshold, "--overwrite") == 0
        lines = capsys.readouterr().out.splitlines()
        assert f"p.geojson: {line}" in lines and "r.csv: 3 images" in lines


def test_annotations_to_correct(here: Path) -> None:
    """A COCO file of all images, or a file of Labelme next to each mask."""
    for name in ("a.png", "b.jpg"):
        write_photo(here / "photos" / name)
    assert run("photos", "-o", "out", "--annotations", "all.json") == 0
    content = json.loads(Path("all.json").read_text())
    assert [each["file_name"] for each in content["images"]] == ["a.png", "b.jpg"]
    assert {each["image_id"] for each in content["annotations"]} == {1, 2}
    assert content["categories"] == [{"id": 1, "name": "255"}]
    assert run("photos", "-o", "out", "--annotations", "labelme", "--skip-existing") == 0
    for name in ("a.png", "b.jpg"):
        path = Path("out", name).with_suffix(".json")
        shapes = json.loads(path.read_text())
        assert (path.parent / shapes["imagePath"]).exists() and shapes["shapes"]
    assert run("photos", "-o", "new", "--annotations", "a.xml") == 2


def test_a_folder_twice(here: Path) -> None:
    """Masks and overlays of the first time are no images the second time."""
    for name in ("a.png", "b.jpg", "c.tif"):
        write_photo(here / "photos" / name)
    assert run("photos", "--overlay") == 0
    assert {path.name for path in (here / "photos").iterdir()} == {
        f"{name}{end}" for name, suffix in (("a", ".png"), ("b", ".jpg"), ("c", ".tif"))
        for end in (suffix, "_mask.png", "_overlay.png")
    }  # fmt: skip
    assert run("photos", "-o", "elsewhere", "--mask-format", "tif") == 0
    masks = {path.name for path in Path("elsewhere").iterdir()}
    assert masks == {"a_mask.tif", "b_mask.tif", "c_mask.tif"}
    ids = tifffile.imread("elsewhere/a_mask.tif")
    assert np.array_equal(ids, np.asarray(Image.open("photos/a_mask.png")))


def test_existing_masks_stay_without_overwrite(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photo(here / "a.png")
    Path("a_mask.png").write_bytes(b"by hand")
    assert run("a.png") == 2
    assert Path("a_mask.png").read_bytes() == b"by hand"
    error = (
        "error: a_mask.png: already exists; use --skip-existing to keep it, --overwrite, or another "
        "--output\n"
    )
    assert capsys.readouterr().err == error
    assert run("a.png", "--overlay") == 2
    assert Path("a_mask.png").read_bytes() == b"by hand"
    assert capsys.readouterr().err == (
        "error: a_mask.png: already exists, and differs from this prediction; use --overwrite, or "
        "another --output\n"
    )
    assert sorted(path.name for path in here.iterdir() if path.is_file()) == ["a.png", "a_mask.png"]
    assert run("a.png", "--overwrite") == 0
    assert Path("a_mask.png").read_bytes() != b"by hand"


def test_what_can_t_be_compared_or_written_is_a_line(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photo(here / "a.png")
    Path("a_overlay.png").mkdir()
    assert run("a.png", "--overlay") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: a_overlay.png: already exists, and can't be compared: Is a dir")
    assert said.count("\n") == 1 and not Path("a_mask.png").exists()
    Path("a_overlay.png").rmdir()
    assert run("a.png") == 0

    def fill_disk(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fill_disk)
    capsys.readouterr()
    assert run("a.png", "--overlay") == 2
    assert capsys.readouterr().err.startswith("error: a_overlay.png: can't be written: No space")
    assert sorted(path.name for path in here.iterdir() if path.is_file()) == ["a.png", "a_mask.png"]


OUTPUTS = {
    "overlay": ["--overlay"],
    "npy": ["--probabilities", "npy"],
    "png": ["--probabilities", "png"],
    "labelme": ["--annotations", "labelme"],
    "own": ["--write", "sizes:Sizes"],
}
SIZES = """
from unet_ddp.files import write_text
from unet_ddp.prediction.outputs.base import Output

class Sizes(Output):
    def files(self, image):
        return [image.named("_size.txt")]
    def write(self, image, prediction):
        write_text(*self.files(image), str(prediction.size))
"""


@pytest.mark.parametrize("flags", OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_are_added_to_masks_that_are_the_same(
    here: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """And masks to outputs, of a folder or in storage."""
    Path("sizes.py").write_text(SIZES)
    for name in ("a.png", "b.png"):
        write_photo(here / "p" / name)
    assert run("p", "-o", "whole", *flags) == 0
    files = {path.name: path.read_bytes() for path in Path("whole").iterdir()}
    assert run("p/a.png", "-o", "out/a_mask.png") == 0
    before = Path("out/a_mask.png").stat().st_mtime_ns
    capsys.readouterr()
    assert run("p", "-o", "out", *flags) == 0
    out, err = capsys.readouterr()
    assert "p/a.png -> out/a" in out and err.startswith("\r") == bool(err)
    assert out.count(": kept out/a_mask.png, which is the same\n") == out.count("kept") == 1
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == files
    assert Path("out/a_mask.png").stat().st_mtime_ns == before
    for path in Path("out").glob("*_mask.png"):
        path.unlink()
    assert run("p", "-o", "out", *flags) == 0
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == files


def test_a_list_is_added_to_masks_and_no_list_is_replaced(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photo(here / "a.png")
    assert run("a.png", "--rle", "whole.csv") == 0
    capsys.readouterr()
    assert run("a.png", "--rle", "l.csv") == 0
    out = capsys.readouterr().out
    assert out.endswith("a.png: kept a_mask.png, which is the same\nl.csv: 1 image\n")
    assert Path("l.csv").read_bytes() == Path("whole.csv").read_bytes()
    assert run("a.png", "--rle", "l.csv", "--overlay") == 2
    assert capsys.readouterr().err.startswith("error: l.csv: already exists; use --overwrite, or")


@pytest.mark.parametrize("flags", [[], ["--batch-size", "2"]], ids=["threads", "batches"])
def test_a_mask_that_differs_ends_the_job_before_others_are_written(
    here: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    for k in range(30):
        write_photo(here / "p" / f"{k:02}.png")
    assert run("p", "-o", "out") == 0
    for k in range(29):
        Path(f"out/{k:02}_mask.png").unlink()
    kept = Path("out/29_mask.png").read_bytes()
    Path("out/29_mask.png").write_bytes(kept[:-1])
    assert run("p", "-o", "out", "--probabilities", "npy", "--workers", "1", *flags) == 2
    assert "out/29_mask.png: already exists, and differs from" in capsys.readouterr().err
    assert Path("out/29_mask.png").read_bytes() == kept[:-1]
    assert not {path.name for path in Path("out").iterdir()} & {
        "29_probabilities.npy",
        "20_mask.png",
    }
    Path("out/29_mask.png").write_bytes(kept)
    # As before: of another batch, some processors round the last bits of a probability otherwise.
    assert run("p", "-o", "out", "--probabilities", "npy", *flags) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"30 images predicted, e.g. out/00_mask.png; \d had files that are the same, and are kept\n",
        out,
    )


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (["a.png", "--rle", "a.png"], "image a.png"),
        (["a.png", "--rle", "checkpoints/best.pt"], "model checkpoints/best.pt"),
        (["a.png", "--polygons", "m.pt", "-m", "checkpoints", "m.pt"], "model m.pt"),
        (["a.png", "a_overlay.png", "--overlay"], "image a_overlay.png"),
        (["l.txt", "--polygons", "l.txt"], "input l.txt"),
        (["a.png", "-o", "m.png", "-m", "m.png"], "model m.png"),
    ],
)
def test_a_job_does_not_replace_its_inputs(
    here: Path, capsys: pytest.CaptureFixture[str], argv: list[str], kept: str
) -> None:
    for name in ("a.png", "a_overlay.png"):
        write_photo(here / name)
    (here / "l.txt").write_text("a.png\n")
    for name in ("m.pt", "m.png"):
        write_model(here / name, Labels((0, 255)))
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    status = run(*argv, "--overwrite")
    assert before == {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    err = capsys.readouterr().err
    assert (status, err.count("\n")) == (2, 1)
    assert err.endswith(f": would replace the {kept}; name another file\n")


def test_a_bad_image_among_many_is_counted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_photo(here / "p" / "a.png")
    (here / "p" / "b.png").write_bytes(b"no image")
    write_photo(here / "p" / "c.png")
    assert run("p") == 1
    err = capsys.readouterr().err
    assert "error: p/b.png: " in err and "1 of 3 images could not be predicted\n" in err
    assert Path("p/c_mask.png").exists() and not Path("p/b_mask.png").exists()


STRANGE = ["gr\xf6.png", "bad\udcff.png", "esc\x1b[31m.png", "line\nbreak.png", 'q".png', "=1.png"]


def test_names_of_any_bytes_on_a_strict_terminal(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escapes take the place of what a terminal would obey or can't show; lists have all names."""
    for name in STRANGE:
        write_photo(here / "p" / name)
    write_model(here / "m\x1b.pt", Labels((0, 255), names=("a\x1bb", "c\nd")))
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii", write_through=True))
    argv = ["p", "-o", "o\x1bt", "--rle", "l\x1b.csv", "--polygons", "p.json", "--overlay"]
    assert run(*argv, "--probabilities", "png", "-m", "m\x1b.pt", "-t", "0.5") == 0
    out = shown.getvalue().decode("ascii")
    assert "\x1b" not in out and r"p/esc\x1b[31m.png -> o\x1bt/esc\x1b[31m_mask.png, " in out
    assert r"_overlay.png and 2 more: a\x1bb " in out
    assert r"p/bad\udcff.png" in out and r"p/gr\xf6.png" in out and r"line\nbreak.png" in out
    assert out.count("\n") == 2 + len(STRANGE) + 2  # model, threshold, images, lists
    with Path("l\x1b.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    assert {row["img"] for row in rows} == {*STRANGE}
    features = json.loads(Path("p.json").read_text())["features"]
    assert {each["properties"]["image"] for each in features} == set(STRANGE)
    assert len(list(Path("o\x1bt").iterdir())) == 4 * len(STRANGE)


@pytest.mark.parametrize("length", [251, 240, 232])
def test_a_name_too_long_is_an_error_of_its_image(
    here: Path, capsys: pytest.CaptureFixture[str], length: int
) -> None:
    long = "x" * (length - 4) + ".png"
    for name in (long, "a.png", "z.png"):
        write_photo(here / "p" / name)
    assert run("p", "-o", "out", "--rle", "l.csv") == 1
    err = capsys.readouterr().err
    assert {path.name for path in Path("out").iterdir()} == {"a_mask.png", "z_mask.png"}
    assert Path("l.csv").read_text().count("png") == 2
    error, count = err.splitlines()
    assert error.startswith(f"error: p/{long}: ") and error.endswith("too long; rename the image")
    assert count == "1 of 3 images could not be predicted"
    assert run(f"p/{long}") == 2
    assert run("p/" + "y" * 300) == 2
    assert run("p", "-o", "n" * 300) == 2
    assert run("p", "--rle", "n" * 300) == 2
    assert run("p", "-m", "n" * 300) == 1
    Path("l.txt").write_text("z" * 300 + "\np/a.png\n")
    assert run("l.txt", "-o", "again") == 1
    err = capsys.readouterr().err
    assert err.count("error: ") == 6 and err.count("\n") == 7


def test_one_class_only_is_a_warning(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = checkpoint.load(here / "checkpoints" / "best.pt")
    content["model"]["outc.conv.bias"][0] += 1e6
    checkpoint.save(here / "checkpoints" / "best.pt", content)
    write_photo(here / "a.png")
    assert run("a.png") == 0
    assert "a.png -> a_mask.png; warning: all of it is 0\n" in capsys.readouterr().out


@pytest.mark.parametrize("few", [2, 3])
def test_of_many_images_a_summary_is_printed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(summary, "FEW", few)
    content = checkpoint.load(here / "checkpoints" / "best.pt")
    content["model"]["outc.conv.bias"][0] += 1e6
    checkpoint.save(here / "checkpoints" / "best.pt", content)
    for name in "abc":
        write_photo(here / "p" / f"{name}.png")
    (here / "p" / "b.png").write_bytes(b"no image")
    assert run("p", "--rle", "l.csv") == 1
    out = capsys.readouterr().out
    assert out.count("warning: all of it is 0") == (2 if few == 3 else 0)
    said = "2 images predicted, e.g. p/a_mask.png\nwarning: 2 of them have one class only\n"
    assert (said in out) == (few == 2)
    assert out.endswith("l.csv: 2 images\n")
    (here / "p" / "c_mask.png").unlink()
    assert run("p", "--skip-existing") == 1
    out = capsys.readouterr().out
    assert ("1 image predicted, e.g. " in out) == (few == 2)
    assert "\n1 image skipped: the files already exist\n" in f"\n{out}"


class Bar:
    """Stands for tqdm's."""

    def __init__(self, total: int, disable: bool | None, **_: Any) -> None:
        self.total, self.disable, self.n = total, disable, 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        bars.append((self.disable, self.n))

    def update(self, count: int) -> None:
        self.n += count

    @staticmethod
    def write(line: str) -> None:
        print(line)


bars: list[tuple[bool | None, int]] = []


def test_the_example_of_many_images_is_a_file_of_one_that_was_predicted(
    here: Path, ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not of one that failed or was skipped; on several processes, of any of them."""
    for n in range(22):
        write_photo(here / f"p/{n:02}.png")
    for n in (0, 2):
        Path(f"p/{n:02}.png").write_bytes(b"no image")
    argv = ["p", "-o", "out", "--device", "cpu", "--skip-existing"]
    assert run(*argv) == 1
    assert "\n20 images predicted, e.g. out/01_mask.png\n" in capsys.readouterr().out
    assert run(*argv) == 1
    assert "\n0 images predicted\n20 images skipped" in capsys.readouterr().out
    Path("out/05_mask.png").unlink()  # of the second process
    outcomes = ranks.run(2, call_main, "predict", argv, str(here))
    said = "".join(out for _, out, _ in outcomes)
    assert "\n1 image predicted, e.g. out/05_mask.png\n19 images skipped" in said, outcomes


@pytest.mark.parametrize(
    ("images", "rank", "size", "expected"),
    [(1, 0, 1, (True, 1)), (5, 0, 1, (None, 5)), (5, 0, 2, (None, 5)), (5, 1, 2, (True, 4))],
)
def test_the_bar_counts_all_processes_images(
    monkeypatch: pytest.MonkeyPatch, images: int, rank: int, size: int, expected: Any
) -> None:
    monkeypatch.setattr(summary, "tqdm", Bar)
    files = [Path(str(n)) for n in range(images)]
    job = SimpleNamespace(files=files, world=World(rank, size))
    outcomes = [Outcome(line=str(n)) for n in range(rank, images, size)]
    assert summary.print_outcomes(job, outcomes) == (0, 0, 0, 0, "")  # type: ignore[arg-type]
    assert bars.pop() == expected


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        (None, "random"),
        ({"load": None}, "random"),
        ({"load": "w.pt"}, "those that the run began with"),
        ({"encoder_weights": "imagenet"}, "those that the run began with"),
    ],
)
def test_a_run_without_a_step_is_not_the_newest_and_a_warning_says_what_it_is(
    here: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any] | None, weights: str
) -> None:
    """Issue: a start that failed left random weights, and the next prediction was theirs."""
    write_photo(here / "a.png")
    runs = here / "checkpoints"
    for name, epoch, step in (("trained", 0, 3), ("failed", 0, 0)):
        path = runs / name / "last.pt"
        write_model(path, Labels((0, 255)), config=config)
        content = checkpoint.load(path)
        checkpoint.save(path, {**content, "position": {"epoch": epoch, "step": step}})
        age = 5 * (name == "trained")
        os.utime(path, (1e9 - age, 1e9 - age))
    os.utime(runs / "best.pt", (1e9 - 9, 1e9 - 9))
    assert run("a.png") == 0
    said = capsys.readouterr().out
    assert said.startswith("model: checkpoints/trained/last.pt (the newest of 2 runs; --model")
    assert "steps" not in said
    line = f"warning: checkpoints/failed/last.pt: 0 steps trained: its weights are {weights}\n"
    assert run("a.png", "--overwrite", "--model", "checkpoints/failed") == 0
    assert line in capsys.readouterr().out
    for path in (runs / "best.pt", runs / "trained" / "last.pt"):
        path.unlink()
    assert run("a.png", "--overwrite") == 0  # the only one
    assert line in capsys.readouterr().out


def test_the_newest_run_is_found(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless one of the same day is for other images or classes: then the user says which."""
    day = 86400
    (here / "checkpoints" / "best.pt").unlink()
    write_photo(here / "a.png")

    def save(name: str, age: int, labels: Labels, channels: int = 3) -> None:
        path = here / "checkpoints" / name / "best.pt"
        write_model(path, labels, channels=channels)
        os.utime(path, (1e9 - age, 1e9 - age))

    save("oldest", 3 * day, Labels((0, 1, 2)))
    save("old", day // 2, Labels((0, 255)))
    save("new one", 0, Labels((0, 255)))
    assert run("a.png") == 0
    said = capsys.readouterr().out
    assert (
        "model: checkpoints/new one/best.pt (the newest of 3 runs; --model takes another)\n" in said
    )
    (here / "checkpoints" / "best.pt").write_bytes(b"half a file")
    os.utime(here / "checkpoints" / "best.pt", (1e9 - 60, 1e9 - 60))
    save("grey", 10, Labels((0, 255)), channels=1)
    assert run("a.png", "--overwrite") == 2
    assert capsys.readouterr().err == (
        "error: checkpoints: its newest runs are of one day and for other data; use --model "
        "'checkpoints/new one/best.pt' (channels: 3, classes: 2, mask values 0, 255) or --model "
        "checkpoints/grey/best.pt (channels: 1, classes: 2, mask values 0, 255)\n"
    )
    save("old", 20, Labels((0, 1, 2)))
    assert run("a.png", "--overwrite") == 2
    assert "or --model checkpoints/old/best.pt (channels: 3, classes: 3," in capsys.readouterr().err
    assert run("a.png", "--overwrite", "--model", "checkpoints/old") == 0


def test_16_bit_images(here: Path) -> None:
    write_model(here / "m.pt", Labels((0, 1)), channels=1, max_value=65535)
    pixels = noise(40, 50)[..., 0].astype(np.uint16) * 257
    Image.fromarray(pixels).save(here / "a.png")
    assert run("a.png", "-m", "m.pt") == 0
    assert np.asarray(Image.open("a_mask.png")).shape == (40, 50)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere.jpg"], "nowhere.jpg: not found"),
        (["empty"], "empty: contains no images"),
        (["slides"], ".webp); a microscope's own format (.czi, .lif): export as TIFF"),
        (["slides/a.czi"], "slides/a.czi: a microscope's own format (.czi): export as TIFF"),
        (["a.png", "-m", "nowhere.pt"], "nowhere.pt"),
        (["a.png", "-m", "a.png"], "a.png: no checkpoint"),
        (["a.png", "-o", "out.jpg"], "out.jpg"),
        (["a.png", "-o", "a.png", "--overwrite"], "would replace the image a.png"),
        (["a.png", "--overlay"], "a_overlay.png: already exists"),
        (["a.png", "--scale", "0.3"], "--scale 0.3"),
        (["a.png", "sub/a.png", "-o", "out"], "a.png and sub/a.png would both write out/a_mask"),
        (["deep.png"], "deep.png: 16 bit, the network was trained on 8 bit images; convert it"),
        ([], "inputs"),
        (["a.png", "--tta"], "--tta"),
        (["a.png", "--tta", "cubes"], "--tta"),
        (["a.png", "-o", "a.png/x/y.png"], "can't be written"),
        (["bands.tif"], "5 channels"),
        (["a.png", "--tile", "8"], "--tile 8: smaller than the network's stride of 16"),
        (["a.png", "--overlap", "100"], "--overlap 100"),
        (["a.png", "--overlap", "-10"], "--overlap -10"),
        (["a.png", "-t", "1.5"], "--threshold 1.5"),
        (["a.png", "-m", "three.pt", "-t", "0.4"], "this network has 3"),
        (
            ["a.png", "-m", "three.pt", "--rle", "x.csv"],
            "--rle: its format has background and one class",
        ),
        (["a.png", "-m", "checkpoints", "half.pt"], "half.pt: its scale"),
        (["a.png", "--rle", "a_overlay.png"], "a_overlay.png: already exists"),
        (["a.png", "--rle", "a_overlay.png/x.csv"], "can't be written"),
        (["a.png", "--batch-size", "0"], "--batch-size 0"),
        (["a.png", "--overwrite", "--skip-existing"], "--skip-existing"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    here: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    write_photo(here / "a.png")
    write_photo(here / "sub" / "a.png")
    (here / "empty").mkdir()
    (here / "slides").mkdir()
    for name in ("a.czi", "b.lif"):
        (here / "slides" / name).write_bytes(b"ZISRAWFILE")
    Image.fromarray(np.zeros((20, 20), np.uint16)).save(here / "deep.png")
    tifffile.imwrite(here / "bands.tif", np.zeros((20, 20, 5), np.uint8), planarconfig="contig")
    (here / "a_overlay.png").write_bytes(b"by hand")
    write_model(here / "three.pt", Labels((0, 1, 2)))
    write_model(here / "half.pt", Labels((0, 255)), scale=0.25)
    before = set(here.rglob("*"))
    assert run(*argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert message.lower() in err.lower()
    assert set(here.rglob("*")) == before


def test_colour_images_are_made_grey_for_a_network_of_grey_ones(here: Path) -> None:
    write_model(here / "grey.pt", Labels((0, 255)), channels=1)
    write_photo(here / "a.png")
    assert run("a.png", "-m", "grey.pt") == 0


def test_an_interrupted_job_continues(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abcd":
        write_photo(here / "p" / f"{name}.png")
    argv = ["p", "-o", "out", "--rle"]
    assert run(*argv, "whole.csv") == 0
    Path("out/c_mask.png").unlink()
    before = Path("out/a_mask.png").stat().st_mtime_ns
    assert run(*argv, "b.csv", "--skip-existing") == 0
    assert Path("out/c_mask.png").exists()
    assert Path("out/a_mask.png").stat().st_mtime_ns == before
    assert Path("b.csv").read_text() == Path("whole.csv").read_text()
    out = capsys.readouterr().out
    assert "\n3 images skipped: the files already exist\nb.csv: 4 images\n" in out
    assert not list(here.rglob(".*"))


def test_earlier_masks_are_not_read_by_the_threshold_of_training_masks(here: Path) -> None:
    """Training masks had 16 bit, and a threshold above all values of predictions."""
    write_model(here / "deep.pt", Labels((0, 255), threshold=1000))
    write_photo(here / "a.png")
    argv = ["a.png", "-m", "deep.pt", "--rle"]
    assert run(*argv, "one.csv") == 0
    assert run(*argv, "two.csv", "--skip-existing") == 0
    assert Path("one.csv").read_text() == Path("two.csv").read_text()


def test_lists_of_several_images(here: Path) -> None:
    for name in "ba":
        write_photo(here / f"{name}.png")
    (here / "c.png").write_bytes(b"no image")
    argv = ["b.png", "c.png", "a.png", "--rle", "l.csv", "--polygons", "l.geojson"]
    assert run(*argv, "--rle-order", "columns") == 1
    rows = list(csv.DictReader(Path("l.csv").read_text().splitlines()))
    assert [row["img"] for row in rows] == ["b.png", "a.png"]
    features = json.loads(Path("l.geojson").read_text())["features"]
    for row in rows:
        mask = np.asarray(Image.open(row["img"].replace(".png", "_mask.png")))
        assert np.array_equal(decode(row["rle_mask"], mask.shape, "columns") * 255, mask)
        own = [f["properties"] for f in features if f["properties"]["image"] == row["img"]]
        assert sum(facts["area"] for facts in own) == (mask == 255).sum()
        assert {facts["class"] for facts in own} == {"255"}


def test_the_threshold_is_the_checkpoints_or_the_flags(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(here / "t.pt", Labels((0, 255)), threshold=0.502)
    write_photo(here / "a.png")
    shares = []
    for flags in (["-m", "t.pt"], ["-m", "t.pt", "-t", "0.498"], ["-t", "0.502"], []):
        assert run("a.png", "--overwrite", *flags) == 0
        shares.append((np.asarray(Image.open("a_mask.png")) == 255).mean())
    assert shares[0] == shares[2] < shares[3] < shares[1]
    assert "  threshold: 255 where its probability is 0.502 or more\n" in capsys.readouterr().out
    write_model(here / "u.pt", Labels((0, 255)), threshold=0.702)
    assert run("a.png", "--overwrite", "-m", "t.pt", "u.pt") == 0
    line = "  threshold: 255 where its probability is 0.602 or more, the mean of the checkpoints'\n"
    assert line in capsys.readouterr().out


def test_models_may_come_before_the_image(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_photo(here / "a.png")
    write_model(here / "b.pt", Labels((0, 255)), seed=5)
    assert run("-m", "checkpoints", "b.pt", "a.png", "--tta", "d4", "--tile", "32") == 0
    assert "model: checkpoints/best.pt, b.pt" in capsys.readouterr().out


@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_number_of_processes_writes_the_same(here: Path, ranks: Ranks, size: int) -> None:
    for number in range(7):
        write_photo(here / "p" / f"{number}.png", (30 + number % 2, 40))
    (here / "p" / "5.png").write_bytes(b"no image")
    argv = ["p", "-o", "out", "--rle", "out.csv", "--polygons", "out.geojson", "--device", "cpu"]
    outcomes = ranks.run(size, call_main, "predict", argv, str(here))
    assert [status for status, _, _ in outcomes] == [1] * size
    errors = "".join(err for _, _, err in outcomes)
    assert errors.count("error: ") == 1 and errors.count("1 of 7 images could not") == 1
    assert sum(out.count("model: ") for _, out, _ in outcomes) == 1
    assert run(*argv[:2], "alone", "--rle", "alone.csv", "--polygons", "a.geojson") == 1
    assert Path("out.csv").read_bytes() == Path("alone.csv").read_bytes()
    assert Path("out.geojson").read_bytes() == Path("a.geojson").read_bytes()
    for path in Path("alone").iterdir():
        assert (Path("out") / path.name).read_bytes() == path.read_bytes()
    assert len(list(Path("out").iterdir())) == 6 and not list(here.rglob(".*"))


def stopped_job(folder: Path, number: int, flags: list[str]) -> None:
    """A job that is sent a signal while a thread is writing."""
    os.chdir(folder)
    sys.stderr = (folder / "err").open("w")
    os.dup2(sys.stderr.fileno(), 2)

    def write_mask(ids: Any, labels: Any, path: Path, *_: Any) -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"unfinished")
            if path.name == "b_mask.png":
                os.kill(os.getpid(), number)
                while True:  # the thread goes on writing its file
                    temporary.stat()

    mask_module.write_mask = write_mask
    signal.signal(number, signal.SIG_DFL)  # a shell's background job ignores SIGINT
    predict.main(["p", "-o", "out", "--rle", "out/list.csv", "--overlay", *flags])


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "flags", "advice"),
    [
        (signal.SIGTERM, [], "continue with --skip-existing"),
        (signal.SIGINT, [], "continue with --skip-existing"),
        (signal.SIGINT, ["--rank", "rank.csv"], "start again with --overwrite"),
    ],
)
def test_a_stopped_job_leaves_no_unfinished_files(
    here: Path, number: int, flags: list[str], advice: str
) -> None:
    for letter in "abc":
        write_photo(here / "p" / f"{letter}.png")
    process = warm_context().Process(target=stopped_job, args=(here, int(number), flags))
    process.start()
    process.join(120)
    assert process.exitcode == 128 + number
    assert (here / "err").read_text().endswith(f"stopped; {advice}\n")
    left = {path.name for path in (here / "out").iterdir()}
    assert not [name for name in left if name.startswith(".")] and "b_mask.png" not in left


def test_without_permission_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit status 2; among many, an image that can't be read is an error of its own."""
    with tempfile.TemporaryDirectory() as name:  # which another user may enter at all
        folder, out, closed = Path(name), Path(name) / "out", Path(name) / "closed"
        folder.chmod(0o755)
        write_photo(folder / "p" / "a.png")
        write_photo(folder / "p" / "b.png").chmod(0)
        write_model(folder / "m.pt", Labels((0, 255)))
        closed.mkdir(mode=0o555)
        out.mkdir()
        out.chmod(0o777)
        image, secret = str(folder / "p" / "a.png"), str(folder / "p" / "b.png")
        model = ["-m", str(folder / "m.pt")]
        with another_user():
            for argv, message in (
                ([image, "-o", str(closed)], "closed: can't be written: no permission"),
                ([image, "-o", str(closed / "new")], "can't be written: no permission"),
                ([image, "-o", str(out), "--rle", str(closed / "l.csv")], "with --rle"),
                ([secret, "-o", str(out)], "b.png: no permission to read it"),
            ):
                assert run(*argv, *model) == 2
                err = capsys.readouterr().err
                assert err.startswith("error: ") and err.count("\n") == 1 and message in err
                assert not list(out.iterdir()) and not list(closed.iterdir())
            assert run(str(folder / "p"), "-o", str(out), *model) == 1
            assert "b.png: no permission to read it" in capsys.readouterr().err
            assert [path.name for path in out.iterdir()] == ["a_mask.png"]
        closed.chmod(0o755)
