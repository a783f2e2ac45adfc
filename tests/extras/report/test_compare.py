"""`python -m unet_ddp compare`: one table and one page of runs."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.extras.report.test_page import STRANGE, Parsed
from tests.tiny import PIXELS
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.config import TrainConfig
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.extras.report.compare import main, read_run
from unet_ddp.network.architecture import Architecture, build_network

HEADING = "epoch,step,validation_dice,validation_iou,validation_score,seconds\n"


def write_run(
    folder: Path,
    rows: list[tuple[float | str, float | str, float]],
    file: str = "best.pt",
    **settings: Any,
) -> Path:
    """The files of a run of 5 steps in each epoch; a row has Dice, IoU and seconds."""
    folder.mkdir(parents=True)
    architecture = Architecture("unet", 3, 2, None, settings.get("width", 2), False)
    network = build_network(architecture)
    content = {
        "architecture": architecture.to_dict(),
        "labels": Labels((0, 255)).to_dict(),
        "preprocessing": PIXELS.to_dict(),
        "model": network.state_dict(),
        "config": {**TrainConfig().to_dict(), "exp_name": folder.name, **settings},
    }
    checkpoint.save(folder / file, content)
    lines = [f"{k},{5 * k},{d},{i},{d},{s}\n" for k, (d, i, s) in enumerate(rows, start=1)]
    (folder / "metrics.csv").write_text(HEADING + "".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs that differ in rate and width; the last was not validated."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        write_run(folder / STRANGE, [(0.5, 0.4, 10), (0.7, 0.6, 11), (0.6, 0.5, 12)]),
        write_run(folder / "wide", [(0.8, 0.7, 700)], width=3, learning_rate=0.01),
        write_run(folder / "blind", [("", "", 5), ("", "", 5)], "last.pt", validation=0),
    ]


def test_the_table_has_the_best_run_first_and_what_differs(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main([*map(str, runs), "--output", str(page)]) == 0
    *lines, said = capsys.readouterr().out.splitlines()
    table = [[cell for cell in line.split("  ") if cell] for line in lines]
    table = [[cell.strip() for cell in row] for row in table]
    assert table[0] == ["run", "Dice", "IoU", "of epoch", "steps", "time", "parameters",
                        "learning_rate", "validation", "width"]  # fmt: skip
    assert table[1] == [
        "wide", "0.8000", "0.7000", "1 of 1", "5", "12 min", "0.07 M", "0.01", "10.0", "3",
    ]  # fmt: skip
    assert table[2][:6] == [STRANGE, "0.7000", "0.6000", "2 of 3", "15", "33 s"]
    assert table[3][:6] == ["blind", "-", "-", "2 of 2", "10", "10 s"]
    assert said == f"wrote {page}"
    parsed = Parsed(page.read_text(encoding="utf-8"))
    assert parsed.texts_of("th")[:10] == table[0] and STRANGE in parsed.texts_of("th")
    assert len(parsed.all("svg")) == 2 and "Validation Dice over time" in parsed.texts_of("h3")
    assert [t for t in parsed.texts_of("title") if t.startswith("wide")] == [
        "wide: 0.8 at 1", "wide: 0.8 at 11.667",  # minutes
    ]  # fmt: skip


def read_table(text: str) -> list[list[str]]:
    """The rows of a printed table, as the cells of each."""
    return [re.split(" {2,}", line.strip()) for line in text.splitlines()]


def test_runs_of_two_classes_are_ranked_and_shown_by_their_scores_at_the_threshold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 0.5, where no prediction is, the order is the other way round; IoU is Dice / (2 - Dice)."""
    epochs = {"good": [(0.3, 0.6), (0.1, 0.8)], "bad": [(0.6, 0.5), (0.7, 0.4)]}
    heading = "epoch,validation_dice,validation_iou,threshold,dice_at_threshold,validation_score\n"
    for name, scores in epochs.items():
        folder = write_run(tmp_path / name, [])
        lines = [f"{k},{at_half},0.15,0.3,{d},{d}\n" for k, (at_half, d) in enumerate(scores, 1)]
        (folder / "metrics.csv").write_text(heading + "".join(lines))
    page = tmp_path / "page.html"
    assert main([*(str(tmp_path / name) for name in sorted(epochs)), "-o", str(page)]) == 0
    heads, *rows, _ = read_table(capsys.readouterr().out)
    assert heads[:4] == ["run", "Dice", "IoU", "of epoch"]
    assert [row[:4] for row in rows] == [
        ["good", "0.8000", "0.6667", "2 of 2"], ["bad", "0.5000", "0.3333", "1 of 2"],
    ]  # fmt: skip
    titles = Parsed(page.read_text(encoding="utf-8")).texts_of("title")
    assert "good: 0.8 at 2" in titles and "bad: 0.7 at 2" not in titles


def test_runs_of_objects_have_their_own_column_and_charts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their mean AP is no Dice: they are not ranked among those that Dice chooses; last.pt says it, too."""
    write_run(tmp_path / "pixels", [(0.5, 0.4, 1)])
    write_run(tmp_path / "blind", [("", "", 1)], "last.pt")
    for name, score in (("low", 0.6), ("high", 0.7)):
        path = write_run(tmp_path / name, [(0.9, 0.8, 1)]) / "best.pt"
        best = {"score": score, "name": "mean AP", "dice": 0.9, "epoch": 0, "improved": 0}
        checkpoint.save(path, {**checkpoint.load(path), "best": best})
        (tmp_path / name / "metrics.csv").write_text(f"{HEADING}1,5,0.9,0.8,{score},1\n")
    low = tmp_path / "low"
    checkpoint.save(low / "last.pt", {**checkpoint.load(low / "best.pt"), "optimizer": {}})
    page, places = tmp_path / "page.html", ["blind", "low/last.pt", "pixels", "high"]
    assert main([*(str(tmp_path / place) for place in places), "-o", str(page)]) == 0
    heads, *rows, _ = read_table(capsys.readouterr().out)
    assert heads[:4] == ["run", "Dice", "IoU", "mean AP"]
    assert [row[:4] for row in rows] == [
        ["pixels", "0.5000", "0.4000", "-"], ["high", "0.9000", "0.8000", "0.7000"],
        ["low", "0.9000", "0.8000", "0.6000"], ["blind", "-", "-", "-"],
    ]  # fmt: skip
    parsed = Parsed(page.read_text(encoding="utf-8"))
    assert {"Validation Dice", "Validation mean AP"} < {*parsed.texts_of("h3")}
    assert "high: 0.7 at 1" in parsed.texts_of("title")


def test_a_checkpoint_stands_for_its_run(runs: list[Path]) -> None:
    """Its row has the run's best epoch, so it does not have the checkpoint's name."""
    whole, one = read_run(runs[0]), read_run(runs[0] / "best.pt")
    assert one.name == STRANGE and one.cells == whole.cells
    assert whole.history == [0.5, 0.7, 0.6] and whole.seconds == [10, 21, 33]


def test_runs_of_one_name_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [write_run(tmp_path / k / "r", [(0.5, 0.4, 10)]) for k in "ab"]
    assert main([*map(str, places), "-o", str(tmp_path / "c.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:3]] == list(map(str, places))
    assert main([*(f"{place}/best.pt" for place in places), "-o", str(tmp_path / "c.html")]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == lines[1:3]


def test_more_runs_than_colours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [write_run(tmp_path / f"r{k}", [(k / 10, 0.1, 1)], seed=k) for k in range(9)]
    page = tmp_path / "page.html"
    assert main([*map(str, places), "-o", str(page)]) == 0
    parsed = Parsed(page.read_text(encoding="utf-8"))
    assert len(parsed.all("tr")) == 1 + 9 and "charts: the best 8" in parsed.texts_of("p")
    assert sum(text == "r0: 0 at 1" for text in parsed.texts_of("title")) == 0
    assert [a["class"] for a in parsed.all("i")][:8] == [f"s{k}" for k in range(8)]


def test_runs_that_repeat_one_training_have_a_mean_and_a_standard_deviation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of those that differ in seed or fold alone, each once; other runs, and those without a score, have none."""
    places = [
        *(write_run(tmp_path / f"s{k}", [(k / 10, k / 20, 1)], seed=k) for k in (2, 4, 9)),
        write_run(tmp_path / "again", [(0.9, 0.45, 1)], seed=9),
        write_run(tmp_path / "blind", [("", "", 1)], seed=5),
        write_run(tmp_path / "wide", [(0.95, 0.9, 1)], seed=1, width=3),
        *(write_run(tmp_path / f"f{k}", [(k / 10, 0.1, 1)], fold=f"{k}/3") for k in (1, 2)),
        write_run(tmp_path / "of_four", [(0.3, 0.1, 1)], fold="3/4"),
    ]
    page = tmp_path / "page.html"
    assert main([*map(str, places), "-o", str(page)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "±" in line]
    assert lines == [  # 2, 4 and 9: mean 5, deviations -3, -1 and 4: sqrt(26 / 2) = 3.6056
        "Dice 0.5000 ± 0.3606, IoU 0.2500 ± 0.1803: mean ± standard deviation of 3 runs that differ in "
        "seed alone: s9, s4, s2",
        "Dice 0.1500 ± 0.0707, IoU 0.1000 ± 0.0000: mean ± standard deviation of 2 runs that differ in "
        "fold alone: f2, f1",
    ]
    assert set(lines) <= set(Parsed(page.read_text(encoding="utf-8")).texts_of("p"))


def test_what_is_no_run_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`compare checkpoints/*` names the page of the folder, a run's own files, and other folders."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "checkpoints", [(0.5, 0.4, 10)])
    (tmp_path / "checkpoints" / "last.pt").write_bytes(b"of the same run")
    write_run(tmp_path / "checkpoints" / "a", [(0.7, 0.6, 10)])
    write_run(tmp_path / "checkpoints" / "begun", [], "last.pt")
    (tmp_path / "checkpoints" / "evaluation").mkdir()
    (tmp_path / "checkpoints" / "README.md").touch()
    torch.save({"outc.conv.weight": torch.ones(3)}, tmp_path / "theirs.pt")
    given = sorted(map(str, Path("checkpoints").iterdir()))
    assert main([*given, "theirs.pt"]) == 0
    *left, _, first, second, _ = capsys.readouterr().out.splitlines()
    assert left == [
        "left out: checkpoints/begun: no epoch is done (metrics.csv); train it first",
        "left out: theirs.pt: not a checkpoint of this program's runs; leave it out",
        "left out, no runs: checkpoints/README.md, checkpoints/evaluation, checkpoints/metrics.csv",
    ]
    assert first.startswith("a  ") and second.startswith("checkpoints  ")


def test_nothing_to_compare_is_one_line(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place, said in (
        (tmp_path, "left out, no runs: .*; name folders of runs"),
        (tmp_path / "typo", "typo/best\\.pt: checkpoint not found"),
    ):
        with pytest.raises(UserError, match=said):
            main([str(place)])
    with pytest.raises(UserError, match=r"typo/best\.pt: checkpoint not found"):
        main([str(runs[1]), "typo"])
    with pytest.raises(UserError, match=r"^no runs were named; name folders of runs, as"):
        main([])
    with pytest.raises(UserError, match=r"--output best\.pt: the page is HTML"):
        main([str(runs[1]), "-o", "best.pt"])
    assert not (tmp_path / "compare.html").exists()


def write_record(folder: Path, **start: Any) -> None:
    known = {
        "date": "2026-11-27T10:00:00+00:00", "unet_ddp": "0.1.0", "commit": "a" * 40, "host": "one",
        "processes": 2, "tracked": {}, "packages": {"torch": "2.15.0"}, "end": {"state": "finished"},
    }  # fmt: skip
    record = {"format": 1, "starts": [{**known, **start}], "settings": {}, "data": {}}
    (folder / "run.json").write_text(json.dumps(record))


def test_versions_machines_and_ends_that_differ_are_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [write_run(tmp_path / name, [(0.9 - k / 10, 0.5, 1)]) for k, name in enumerate("abc")]
    write_record(folders[0])
    write_record(
        folders[1], has_changes=True, gpu="H100", end={"state": "stopped", "signal": "SIGTERM"}
    )  # the third is of a version without a record
    assert main([*map(str, folders), "-o", str(tmp_path / "page.html")]) == 0
    heading, *rows = [re.split(" {2,}", line) for line in capsys.readouterr().out.splitlines()[:4]]
    at = heading.index("date")
    assert heading[at:] == ["date", "end", "machine", "unet_ddp", "commit", "torch"]
    date, version, commit = "2026-11-27 10:00:00", "0.1.0", "a" * 12
    assert [row[at:] for row in rows] == [
        [date, "finished", "one, 2 x CPU", version, commit, "2.15.0"],
        [date, "stopped SIGTERM", "one, 2 x H100", version, f"{commit}+", "2.15.0"],
        ["-"] * 6,
    ]


@pytest.mark.parametrize(
    "damage",
    [
        "\0\1\2\n\3\4\n",
        "x7#kq\nzz9\n",
        HEADING + "1,5,0.5,0.4,0.5,1\n2,\n",
        HEADING + "1,5,0.5,0.4,0.5,1\n#!x\n2,1,1,1,1,1\n",
    ],
)
def test_a_damaged_file_is_named(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of rubbish are no row of nan, and no record is not a damaged one."""
    good = write_run(tmp_path / "good", [(0.5, 0.4, 1)])
    bad = write_run(tmp_path / "bad", [])
    (bad / "metrics.csv").write_text(damage)
    (good / "run.json").write_bytes(b"\x00\xff")
    assert main([str(good), str(bad), "-o", str(tmp_path / "page.html")]) == 0
    warning, left, _, row, _ = capsys.readouterr().out.splitlines()
    assert left.startswith(f"left out: {bad / 'metrics.csv'}: corrupt (")
    assert warning.startswith(f"warning: {good / 'run.json'}: damaged") and "nan" not in row


def write_sides(
    run: Path, images: Iterable[str], folder: str = "/data/", of: Iterable[str] = "txyzw"
) -> None:
    """Write the split of images of which some are for validation."""
    lines = ['"image","mask","group","split"']
    for name in of:
        side = "validation" if name in images else "training"
        lines.append(f'"{folder}{name}.png","{folder}m/{name}.png","","{side}"')
    (run / "split.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def warn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """The warnings, and lines of means, about runs in a folder by their names."""

    def compare(*names: str) -> list[str]:
        page = tmp_path / "page.html"
        assert main([*(str(tmp_path / name) for name in names), "-o", str(page)]) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if line.startswith("warning: ") or "±" in line]

    return compare


def test_scores_of_other_images_are_not_ranked_in_silence(
    tmp_path: Path, warn: Callable[..., list[str]]
) -> None:
    """Neither if the split is another one, nor if the data are."""
    names = {"a": "xy", "b": "yx", "c": "yz", "d": "xw", "e": "xy"}
    for name, images in names.items():
        run = write_run(tmp_path / name, [(0.5, 0.4, 1)])
        write_sides(run, images, "/other/" if name == "d" else "/data/")
    (tmp_path / "e" / "split.csv").unlink()  # as of a pack
    for same in ("a", "ab", "ae"):
        assert not warn(*same)
    (line,) = warn("a", "b", "c", "d")
    assert line.startswith("warning: c, d: validated on other images than a")
    assert f"evaluate --model {tmp_path / 'a'} --against {tmp_path / 'c'} --images DIR" in line
    page = (tmp_path / "page.html").read_text()
    assert "--val-images" in line and "c, d: validated on other images" in page
    for name in "ad":  # the same, on two machines
        record = {"format": 1, "settings": {}, "data": {"fingerprint": "1f"}, "starts": []}
        (tmp_path / name / "run.json").write_text(json.dumps(record))
    assert not warn("a", "d") and "d" not in warn("a", "c", "d")[0].split(": ")[1]


def test_the_same_validation_images_in_another_folder_are_the_same(
    tmp_path: Path, warn: Callable[..., list[str]]
) -> None:
    """On another machine, or in object storage, and whatever else was trained on."""
    places = {
        "a": "/data/val/", "b": "/srv/me/val2/", "c": "s3://bucket/val/", "d": "C:\\data\\val\\",
        "e": "/data/val/deeper/",
    }  # fmt: skip
    for name, folder in places.items():
        run = write_run(tmp_path / name, [(0.5, 0.4, 1)], learning_rate=ord(name))
        write_sides(run, "xyé", folder, of="xyé" + name)
    assert not warn(*places)
    mac = ["x", "y", unicodedata.normalize("NFD", "é")]
    write_sides(tmp_path / "c", mac, of=mac)
    assert not warn(*places)
    write_sides(tmp_path / "b", "xy", of="xyé")
    write_sides(tmp_path / "c", "xy", "/data/val/a/", of="xyt")
    assert warn(*places)[0].startswith("warning: b, c: ")


def test_folds_are_ranked_if_they_are_of_one_split(
    tmp_path: Path, warn: Callable[..., list[str]]
) -> None:
    runs = {  # fold, seed, validated, of
        "f1": ("1/2", 0, "xy", "wxyz"), "f2": ("2/2", 0, "zw", "wxyz"), "f3": ("1/3", 0, "x", "wxyz"),
        "grown": ("2/2", 0, "zu", "wxyzu"), "seed": ("1/2", 9, "xz", "wxyz"), "none": (None, 0, "x", "wxyz"),
    }  # fmt: skip
    for k, (name, (fold, seed, images, of)) in enumerate(runs.items()):
        settings: dict[str, Any] = {
            "fold": fold,
            "seed": seed,
            "learning_rate": k + 1,
        }  # no repeats
        write_sides(write_run(tmp_path / name, [(0.9 - k / 10, 0.3, 1)], **settings), images, of=of)
    assert not warn("f1", "f2") and not warn("f3", "none")
    for name in ("f3", "grown", "seed", "none"):
        (line,) = warn("f1", "f2", name)
        assert line.startswith(f"warning: {name}: validated on other images than f1")


def test_repeats_with_other_seeds_are_of_other_splits_without_a_warning(
    tmp_path: Path, warn: Callable[..., list[str]]
) -> None:
    """Their mean says so; what else was validated on the images of one of them is ranked, too."""
    runs = {"s0": ("xy", 0, 2), "s1": ("zw", 1, 2), "wide": ("zw", 1, 3), "same": ("xy", 5, 2)}
    for name, (images, seed, width) in runs.items():
        write_sides(write_run(tmp_path / name, [(0.5, 0.4, 1)], seed=seed, width=width), images)
    (line,) = warn("s0", "s1", "wide")
    assert line.endswith("that differ in seed alone, each with its own split: s0, s1")
    (line,) = warn("s0", "same")
    assert line.endswith("that differ in seed alone: s0, same")
    write_sides(tmp_path / "s1", "zw", of="txyzwu")  # another image: no repeat
    (line,) = warn("s0", "s1")
    assert line.startswith("warning: s1: validated on other images than s0")
