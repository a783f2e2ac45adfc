"""Predictions without files of masks: lists, tables and pictures alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.maps import write_map
from tests.prediction.models import noise, write_model, write_photo
from tests.prediction.test_predict import run
from tests.ranks import Ranks, call_main
from unet_ddp.data.labels import Labels
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.overlap.labels import OverlapLabels
from unet_ddp.prediction import summary

NONE = ["--mask-format", "none"]
LISTS = {
    "two classes": (Labels((0, 255)), ["rle", "polygons", "annotations", "rank", "label_studio"]),
    "objects": (
        ObjectLabels.of(("cell", "tree")),
        ["objects", "counts", "polygons", "annotations"],
    ),
    "overlap": (OverlapLabels((1, 2, 4)), ["polygons", "label_studio"]),
}


def name_lists(names: list[str], folder: str) -> list[str]:
    flags = []
    for name in names:
        flags += [f"--{name.replace('_', '-')}", f"{folder}/{name}.json"]
    return flags


@pytest.mark.parametrize("kind", LISTS)
def test_files_of_all_images_are_those_beside_masks(here: Path, kind: str) -> None:
    labels, names = LISTS[kind]
    write_model(here / "checkpoints" / "best.pt", labels)
    for name in ("a.png", "b.png"):
        write_photo(here / "p" / name)
    assert run("p", "-o", "masks", *name_lists(names, "with")) == 0
    assert run("p", *NONE, "--overlay", *name_lists(names, "without")) == 0
    assert sorted(path.name for path in Path("p").iterdir()) == [
        "a.png", "a_overlay.png", "b.png", "b_overlay.png",
    ]  # fmt: skip
    for name in names:
        written = Path(f"without/{name}.json").read_bytes()
        assert written == Path(f"with/{name}.json").read_bytes() and len(written) > 50


def test_pixels_of_a_map_without_data_are_no_objects(here: Path) -> None:
    pixels = noise(64, 80)
    pixels[:, :40] = 7
    write_map(here / "p" / "a.tif", pixels, nodata=7)
    for flags, name in (([], "with.json"), (NONE, "without.json")):
        assert run("p", "-o", "out", "--polygons", name, *flags) == 0
    assert Path("with.json").read_bytes() == Path("without.json").read_bytes()
    assert [path.name for path in Path("out").iterdir()] == ["a_mask.tif"]


def test_it_says_where_the_result_is(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(3):
        write_photo(here / "p" / f"{k}.png")
    flags = ["p", *NONE, "--rle"]
    assert run(*flags, "few.csv") == 0
    out = capsys.readouterr().out
    assert "p/0.png -> few.csv\n" in out and out.endswith("\nfew.csv: 3 images\n")
    monkeypatch.setattr(summary, "FEW", 2)
    assert run(*flags, "many.csv") == 0
    assert capsys.readouterr().out.endswith("\n3 images predicted\nmany.csv: 3 images\n")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "--mask-format none: nothing would be written; add an output, such as --rle FILE.csv"),
        (
            ["--overlay", "-o", "x.png"],
            "--output x.png: --mask-format none writes no mask; give a folder",
        ),
    ],
)
def test_nothing_to_write_is_a_mistake(
    here: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    write_photo(here / "a.png")
    assert run("a.png", *NONE, *argv) == 2
    assert capsys.readouterr().err == f"error: {said}\n"


def test_images_whose_files_exist_are_skipped_unless_a_list_needs_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list takes them from their masks, which there are none of."""
    for name in ("a.png", "b.png"):
        write_photo(here / "p" / name)
    assert run("p", *NONE, "--overlay") == 0
    Path("p/b_overlay.png").unlink()
    before = Path("p/a_overlay.png").stat().st_mtime_ns
    assert run("p", *NONE, "--overlay", "--skip-existing") == 0
    assert "\n1 image skipped: the files already exist\n" in capsys.readouterr().out
    assert Path("p/b_overlay.png").exists()
    assert Path("p/a_overlay.png").stat().st_mtime_ns == before
    assert run("p", "-o", "masks", "--rle", "whole.csv") == 0
    for flags in (["--overlay"], []):
        assert run("p", *NONE, *flags, "--skip-existing", "--rle", "l.csv") == 0
        assert Path("l.csv").read_bytes() == Path("whole.csv").read_bytes()
        Path("l.csv").unlink()


def test_two_processes_write_the_list_of_one(here: Path, ranks: Ranks) -> None:
    for k in range(5):
        write_photo(here / "p" / f"{k}.png")
    assert run("p", *NONE, "--rle", "one.csv") == 0
    outcomes = ranks.run(2, call_main, "predict", ["p", *NONE, "--rle", "two.csv"], str(here))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert Path("one.csv").read_bytes() == Path("two.csv").read_bytes()
    assert not list(here.rglob("*_mask.*"))
