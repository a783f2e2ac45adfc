"""What a released version has written, this one reads: its masks and scores are those that were kept beside it.

`python -m benchmarks.released` made the files. A test that fails here says that a user of that version loses something.
"""

from __future__ import annotations

import csv
import json
import lzma
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save

from benchmarks.interface import describe_interface, find_missing
from benchmarks.released import CASES, PACKED, PARTS, STOPPED, draw, network_flags, predicted
from tests.object_store import MemoryBucket
from tests.ranks import call_main, call_train
from unet_ddp import __version__
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.cli import parse_train, read_recipe
from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url
from unet_ddp.extras.cloud.objects import put
from unet_ddp.extras.cloud.pointer import StoredRun
from unet_ddp.extras.packs.pack_columns import read_columns, write_columns
from unet_ddp.extras.packs.pairs import open_pack
from unet_ddp.runs.record import read_record

RELEASED = sorted((Path(__file__).parent / "released").iterdir())
OF_MACHINE = {"images_per_second", "data_wait", "seconds"}  # in metrics.csv
BY_THRESHOLD = {"best_threshold", "dice_at_best_threshold", "calibration_error"}
"""Scores that a pixel on the edge of a bin changes more than others."""


@pytest.fixture(scope="module", params=RELEASED, ids=lambda folder: folder.name)
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A folder as it was when the version wrote its files, with the images drawn again."""
    folder = tmp_path_factory.mktemp("home")
    for source in filter(Path.is_file, request.param.rglob("*")):
        to = folder / source.relative_to(request.param)
        to.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".xz":
            to.with_suffix("").write_bytes(lzma.decompress(source.read_bytes()))
        elif source.suffix == ".png":
            shutil.copyfile(source, to)
        else:
            to.write_text(source.read_text(encoding="utf-8").replace("/data/", f"{folder}/"))
    for case in CASES:
        (folder / case).rename(folder / f"run_{case}")
        draw(folder / case, case)
    yield folder
    sys.modules.pop(PARTS, None)


@pytest.fixture(autouse=True)
def _own_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of the user's own are found where the runs are."""
    if "home" in request.fixturenames:
        monkeypatch.syspath_prepend(request.getfixturevalue("home"))


def command(home: Path, *words: str) -> str:
    """Return what a command prints; it must succeed."""
    status, out, err = call_main("unet_ddp.__main__", [*words], str(home))
    assert status == 0, err
    return out


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


# -- networks ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_masks_are_those_that_were_kept(home: Path, case: str) -> None:
    """No pixel was near the edge of its class when they were made, so no machine has others."""
    model = ["--model", f"run_{case}/best.pt", *network_flags(case)]
    command(home, "predict", *predicted(case, f"new/{case}"), *model, "--device", "cpu")
    kept, new = (sorted((home / name / case).iterdir()) for name in ("masks", "new"))
    assert [path.name for path in kept] == [path.name for path in new]
    for one, other in zip(kept, new, strict=True):
        if one.suffix == ".csv":
            compare_tables(read_csv(one), read_csv(other))
            continue
        first, second = (np.asarray(Image.open(path)) for path in (one, other))
        assert first.dtype == second.dtype and np.array_equal(first, second), other
        assert len(np.unique(first)) > 1


def compare_tables(kept: list[dict[str, str]], new: list[dict[str, str]]) -> None:
    """Check that each cell that was kept is there, and the same; numbers to 0.001."""
    for old, row in zip(kept, new, strict=True):
        for name, cell in old.items():
            try:
                assert float(row[name]) == pytest.approx(float(cell), abs=1e-3), name
            except ValueError:
                assert row[name] == cell, name


def compare(kept: Any, new: Any, place: str) -> None:
    """Check that each score that was kept is there, and the same."""
    if isinstance(kept, dict):
        for name, each in kept.items():
            if name != "model":
                assert name in new, (place, name)
                compare(each, new[name], f"{place} {name}")
    elif isinstance(kept, list):
        assert len(kept) == len(new), place
        for one, other in zip(kept, new, strict=True):
            compare(one, other, place)
    elif isinstance(kept, float):
        limit = 0.02 if BY_THRESHOLD & {*place.split()} else 1e-4
        assert new == pytest.approx(kept, abs=limit), place
    else:
        assert kept == new, place


@pytest.mark.parametrize("case", CASES)
def test_the_scores_are_those_that_were_kept(home: Path, case: str) -> None:
    kept = json.loads((home / "scores.json").read_text())[case]
    tables = kept.pop("tables")
    command(
        home, "evaluate", "--model", f"run_{case}/best.pt", *network_flags(case), "--device", "cpu"
    )
    compare(kept, json.loads((home / f"run_{case}/evaluation/scores.json").read_text()), case)
    for name, columns in tables.items():
        with (home / f"run_{case}/evaluation" / name).open(newline="", encoding="utf-8") as file:
            assert {*columns.split(",")} <= {*next(csv.reader(file))}, name


@pytest.mark.parametrize("file", ["classes.onnx", "card/model.safetensors"])
def test_an_exported_network_predicts_the_same(home: Path, file: str) -> None:
    flags = [] if file.endswith(".onnx") else network_flags("classes")
    where = ["-o", f"new/{Path(file).suffix}"]
    command(home, "predict", "classes/imgs/00.bmp", "--model", file, *flags, *where)
    (path,) = (home / f"new/{Path(file).suffix}").iterdir()
    assert np.array_equal(Image.open(path), Image.open(home / "masks/classes/00_mask.png"))


# -- runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", STOPPED)
def test_a_stopped_run_goes_on(home: Path, case: str) -> None:
    """It ends as it ended in the version that began it, and writes the same files with the same names."""
    folder, kept = home / "ended" / case, home / f"run_{case}"
    shutil.copytree(kept, folder, ignore=shutil.ignore_patterns("ended.csv", "evaluation"))
    place = ["--checkpoints", "ended", "--exp-name", case]
    words = ["--resume", *place, "--workers", "0", *STOPPED[case]]
    status, out, err = call_train(words, str(home))
    assert (status, err) == (0, "") and "are done" in out
    rows, expected = read_csv(folder / "metrics.csv"), read_csv(kept / "ended.csv")
    assert len(rows) == len(expected) > len(read_csv(kept / "metrics.csv"))
    for new, old in zip(rows, expected, strict=True):
        assert [name for name in new if name in old] == [*old]
        for name in old.keys() - OF_MACHINE:
            limit = 1e-3 if name in ("loss", "learning_rate") else 0.02
            assert float(new[name] or 0) == pytest.approx(float(old[name] or 0), abs=limit), name
    new, old = read_record(folder / "run.json"), json.loads((kept / "run.json").read_text())
    assert new.keys() >= old.keys() and new["settings"].keys() >= old["settings"].keys()
    assert [start["end"]["state"] for start in new["starts"]] == ["stopped", "finished"]
    assert (
        new["starts"][0] == old["starts"][0] and new["starts"][1].keys() >= old["starts"][0].keys()
    )
    for name in ("best.pt", "last.pt"):
        content = (checkpoint.load(each / name) for each in (folder, kept))
        assert next(content).keys() >= next(content).keys()
    if case == "classes":  # its own callback, called as before, has written all that it was given
        name, steps, lines, saves, *ending = json.loads((folder / "notes.json").read_text())
        assert (name, steps, lines[-1], saves) == ("classes", 48, 16, ["best.pt", "last.pt"])
        assert ending == ["finished", 0, None, None]


@pytest.mark.parametrize("case", STOPPED)
def test_the_settings_of_a_run_are_a_recipe(home: Path, case: str) -> None:
    """Each name is known, and has the meaning that the run's checkpoint has."""
    path = home / f"run_{case}/config.yaml"
    kept = yaml.safe_load(path.read_text())
    read = read_recipe(path)
    saved = [checkpoint.load(path.with_name(file))["config"] for file in ("best.pt", "last.pt")]
    now = TrainConfig().to_dict()
    for name, value in kept.items():
        assert read.get(name) == (tuple(value) if isinstance(value, list) else value), name
        assert all(each[name] == value for each in saved) and name in now, name


def test_what_no_flag_set_is_a_default_today(home: Path) -> None:
    kept = yaml.safe_load((home / "run_two/config.yaml").read_text())
    now = TrainConfig().to_dict()
    words = ["--images", "a", "--masks", "a", "-b", "2", "-v", "50", "--lr", "1", "--no-amp"]
    given = parse_train(
        [*words, "--bilinear", "--width", "1", "--epochs", "9", "--exp-name", "two"]
    ).given
    assert {name: kept[name] for name in kept.keys() - given} == {
        name: now[name] for name in kept.keys() - given
    }
    assert len(kept.keys() - given) > 40


def test_the_report_and_the_comparison_read_the_runs(home: Path) -> None:
    command(home, "report", "run_two", "--device", "cpu")
    page = (home / "run_two/report.html").read_text(encoding="utf-8")
    scores = json.loads((home / "scores.json").read_text())["two"]
    start = json.loads((home / "run_two/run.json").read_text())["starts"][0]
    assert start["date"] in page and f"unet_ddp {start['unet_ddp']}" in page
    assert f"{scores['dice']:.4f}" in page
    table = command(home, "compare", "run_two", "run_classes", "-o", "compare.html")
    rows = [read_csv(home / f"run_{case}/metrics.csv") for case in ("two", "classes")]
    assert all(
        f"{max(float(row['validation_score']) for row in each):.4f}" in table for each in rows
    )
    assert start["date"].partition("+")[0].replace("T", " ") in table


# -- data ----------------------------------------------------------------------------------


def test_a_pack_has_the_pixels_that_were_packed(home: Path) -> None:
    draw(home / "packed", "two", PACKED)
    pairs = open_pack(home / "pack")
    assert len(pairs) == PACKED
    pairs.share()
    for row, name in enumerate(pairs.names()):
        pair = pairs.to_read(row)
        for path, folder in ((pair.image, "imgs"), (pair.mask, "masks")):
            with pairs.local(path) as local:
                found = np.asarray(Image.open(local))
            assert np.array_equal(
                found, Image.open(home / f"packed/{folder}/{Path(name).name}.bmp")
            )
    out = command(home, "doctor", "--images", "pack", "--validation", "0")
    assert f"{PACKED} images to train on" in out and "mask values 0, 255" in out


def test_the_split_of_a_run_is_a_list(home: Path) -> None:
    out = command(home, "doctor", "--list", "run_two/split.csv")
    assert "6 images to train on, 6 to validate" in out


# -- what programs build on ----------------------------------------------------------------


def test_parts_of_one_s_own_are_called_as_before(home: Path) -> None:
    pixels = np.asarray(Image.open(home / "classes/imgs/00.bmp"))
    np.array(pixels.shape, "<u2").tofile(home / "00.xyz")
    with (home / "00.xyz").open("ab") as file:
        file.write(pixels.tobytes())
    words = ["00.xyz", "--model", "run_classes/best.pt", *network_flags("classes"), "-o", "new/own"]
    words += ["--reader", f"{PARTS}:XyzFile", "--write", f"{PARTS}:Rows"]
    command(home, "predict", *words)
    assert np.array_equal(
        Image.open(home / "new/own/00_mask.png"), Image.open(home / "masks/classes/00_mask.png")
    )
    about = ["00.xyz", "00.xyz", "00_mask.png", 24, 32, 24, ["ground", "square", "bar"], 3, "uint8"]
    assert json.loads((home / "rows.json").read_text()) == [about]
    assert json.loads((home / "new/own/00_rows.json").read_text()) == about
    assert command(home, f"{PARTS}:count", "run_two/best.pt") == "2 classes: 0, 255\n"


def test_the_source_of_a_part_is_kept_in_the_checkpoint(home: Path) -> None:
    sources = checkpoint.load(home / "run_classes/best.pt")["sources"]
    text = (home / f"{PARTS}.py").read_text()
    assert {f"{PARTS}:{name}" for name in ("Tiny", "SquaredDice", "darker")} <= {*sources}
    assert {*sources.values()} == {text}


@pytest.mark.parametrize("folder", RELEASED, ids=lambda folder: folder.name)
def test_the_public_interface_has_all_that_it_had(folder: Path) -> None:
    """Names, arguments, flags and their defaults: docs/reference/public.md promises them."""
    kept = json.loads((folder / "interface.json").read_text(encoding="utf-8"))
    assert list(find_missing(kept, describe_interface())) == []
    assert list(find_missing({"a": {"b": "1"}, "c": True}, {"a": {"b": "2"}})) == [
        "a b: was 1, is 2",
        "c: gone",
    ]


# -- files of later versions ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["best.pt", "last.pt", "run.json", "pack", "classes.onnx", "card"])
def test_a_file_of_a_later_format_is_one_line(home: Path, tmp_path: Path, name: str) -> None:
    """It names both formats, and the version that wrote the file if it is known, and what to do."""
    path, words = LATER[name](home, tmp_path)
    status, _, err = call_main("unet_ddp.__main__", words, str(home))
    about = "; this version reads format 1: update unet_ddp\n"
    author = ", of unet_ddp '2.0.0'" if name.endswith(".pt") else ""
    assert (status, err) == (2, f"error: {path}: format 2{author}{about}")


def test_the_pointer_of_a_later_format_is_one_line(memory_store: MemoryBucket) -> None:
    address = Url("s3://bucket/runs/one")
    put(address / "last.json", b'{"format": 2, "saved": []}')
    with pytest.raises(
        UserError, match=r"last.json: format 2; this version reads format 1: update unet_ddp$"
    ):
        StoredRun(address).open()
    put(address / "last.json", b'{"format": 0, "token": "a", "launch": null}')
    with pytest.raises(UserError, match=r"last.json: corrupt \(format: 0; expected 1"):
        StoredRun(address).open()


def _later_checkpoint(
    name: str, words: list[str], home: Path, folder: Path
) -> tuple[Path, list[str]]:
    """Write a run whose checkpoint is of format 2 and has other keys; return it, and the command that reads it."""
    shutil.copytree(home / "run_two", folder / "run")
    content = {"format": 2, "unet_ddp": "2.0.0", "network": {}}
    torch.save(content, folder / "run" / name)
    return folder / "run" / name, [*words, str(folder / "run" / name)]


def _later_record(home: Path, folder: Path) -> tuple[Path, list[str]]:
    shutil.copytree(home / "run_two", folder / "run")
    path = folder / "run/run.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2', 1))
    return path, ["report", str(folder / "run"), "--device", "cpu"]


def _later_pack(home: Path, folder: Path) -> tuple[Path, list[str]]:
    pack, path = folder / "pack", folder / "pack/pack.index"
    shutil.copytree(home / "pack", pack)
    about = {**read_columns(path).about, "format": 2}
    write_columns(path, about, {})
    return path, ["train", "--images", str(pack)]


def _later_onnx(home: Path, folder: Path) -> tuple[Path, list[str]]:
    onnx = pytest.importorskip("onnx")
    model, path = onnx.load(home / "classes.onnx"), folder / "classes.onnx"
    (facts,) = (each for each in model.metadata_props if each.key == "unet_ddp")
    facts.value = json.dumps({**json.loads(facts.value), "format": 2, "more": 1})
    onnx.save(model, path)
    return path, ["predict", str(home / "two/imgs/00.bmp"), "--model", str(path)]


def _later_card(home: Path, folder: Path) -> tuple[Path, list[str]]:
    path = folder / "model.safetensors"
    with safe_open(home / "card/model.safetensors", "pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict

    facts = {**json.loads(header["unet_ddp"]), "format": 2}
    path.write_bytes(save(tensors, {**header, "unet_ddp": json.dumps(facts)}))
    return path, ["predict", str(home / "two/imgs/00.bmp"), "--model", str(path)]


LATER: dict[str, Callable[[Path, Path], tuple[Path, list[str]]]] = {
    "best.pt": partial(_later_checkpoint, "best.pt", ["evaluate", "--overwrite", "--model"]),
    "last.pt": partial(_later_checkpoint, "last.pt", ["train", "--resume"]),
    "run.json": _later_record, "pack": _later_pack, "classes.onnx": _later_onnx, "card": _later_card,
}  # fmt: skip


def test_settings_of_a_later_version_are_named(home: Path, tmp_path: Path) -> None:
    """A recipe with one is refused; a run that has one continues without it, and says so."""
    folder = tmp_path / "later"
    shutil.copytree(home / "run_two", folder)
    recipe, last = folder / "config.yaml", folder / "last.pt"
    text = recipe.read_text().replace(f"unet_ddp {__version__}:", "unet_ddp 2.3.4:", 1)
    recipe.write_text(text + "sharpness: 3\n")
    status, _, err = call_main("train", ["--config", str(recipe)], str(home))
    line = f"error: {recipe}: unknown key 'sharpness'; the file is of unet_ddp 2.3.4, this is {__version__}: "
    assert (status, err) == (2, f"{line}update it, or delete the line\n")
    content = checkpoint.load(last)
    content["config"]["sharpness"] = 3
    torch.save(content, last)
    words = ["--resume", str(last), "--workers", "0", "--stop-after", "24"]
    status, out, err = call_train(words, str(home))
    assert (status, err) == (0, "")
    assert "left out, as this version has no such settings: sharpness\n" in out
