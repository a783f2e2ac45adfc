"""`evaluate --against`: the other network's checkpoint or evaluation, mistakes, and ranks."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import make_set
from tests.ranks import Ranks, call_main, call_train
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.network.architecture import build_network, choose_architecture

GIVEN = ["--images", "imgs", "--masks", "masks", "--workers", "0", "--overwrite"]


def save(folder: Path, seed: int, **entries: Any) -> None:
    """Write the best.pt of a run that validates half of imgs."""
    torch.manual_seed(seed)
    labels = entries.get("labels", Labels((0, 255)))
    architecture = choose_architecture("unet", None, channels=3, num_classes=2, width=2)
    content = {
        "model": build_network(architecture).state_dict(),
        "architecture": architecture.to_dict(),
        "preprocessing": Preprocessing.for_images(3, scale=0.5).to_dict(),
        "config": {"images": "imgs", "masks": "masks", "validation": 50.0},
        "threshold": 0.5,
        **entries,
        "labels": labels.to_dict(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(folder / "best.pt", content)


@pytest.fixture(autouse=True, scope="module")
def no_page() -> Iterator[None]:
    """No charts are drawn: they take half of an evaluation's time."""
    with mock.patch("unet_ddp.extras.report.write.render_evaluation", return_value=""):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten pairs, two networks with thresholds of their own, and evaluations of both."""
    folder = make_set(tmp_path_factory.mktemp("against"), 10, size=(32, 40))
    for seed, (name, threshold) in enumerate({"one": 0.5, "two": 0.5934}.items()):
        save(folder / name, seed, threshold=threshold)
        evaluate(folder, "-m", name)
    return folder


def evaluate(folder: Path, *argv: str) -> tuple[list[str], str]:
    """Evaluate on the images that are given; return what is printed, and the error."""
    _, out, err = call_main("unet_ddp.__main__", ["evaluate", *GIVEN, *argv], str(folder))
    return [line for line in out.splitlines() if not line.startswith("wrote")], err


def compared(folder: Path, *argv: str) -> list[str]:
    lines, err = evaluate(folder, "-m", "one", "-o", "out", *argv)
    assert not err
    start = next(k for k, line in enumerate(lines) if line.startswith("against "))
    return lines[start + 1 :]


def test_a_checkpoint_and_its_evaluation_are_compared_alike(folder: Path) -> None:
    given = ["two", "two/best.pt", "two/evaluation", "two/evaluation/per_image.csv"]
    first, *others = [compared(folder, "--against", other) for other in given]
    assert others == [first] * 3 and len(first) == 3
    scores = [evaluate(folder, "-m", name)[0] for name in ("one", "two")]
    own, other = (
        line.split()[1].strip(",") for lines in scores for line in lines if "Dice 0" in line[:6]
    )
    assert first[0].startswith(f"  Dice {own} against {other}: ") and ", 10 images)" in first[0]
    turned, _ = evaluate(folder, "-m", "two", "-o", "out", "--against", "one")
    assert f"  Dice {other} against {own}: " in "\n".join(turned)


def test_a_network_against_itself_shows_nothing(folder: Path) -> None:
    first, _, last = compared(folder, "--against", "one")
    assert ": +0.0000 (95 % interval +0.0000 to +0.0000, 10 images); the interval contains" in first
    assert last.startswith("  better in 0 images, worse in 0; lowest: ")


def test_images_of_one_group_count_as_one(folder: Path) -> None:
    """Names that differ in a last number, as training detects them; of a run's validation its own."""
    for name in ("imgs", "masks"):
        (folder / "grouped" / name).mkdir(parents=True)
        for k, path in enumerate(sorted((folder / name).iterdir())):
            (folder / "grouped" / name / f"car{k % 7}_{k}.png").write_bytes(path.read_bytes())
    argv = ["--images", "grouped/imgs", "--masks", "grouped/masks", "--against", "two"]
    first, *_, last = compared(folder, *argv)
    assert ", 7 groups)" in first and " groups, worse in " in last
    config = {"images": "grouped/imgs", "masks": "grouped/masks", "validation": 50.0}
    save(folder / "grouped" / "run", 0, config=config, names=None)
    argv = ["evaluate", "-m", "grouped/run", "--against", "two", "--workers", "0"]
    _, out, err = call_main("unet_ddp.__main__", argv, str(folder))
    assert not err and " groups: too few for an interval, which takes 6" in out
    assert "warning: it had another split" not in out
    save(folder / "grouped" / "other", 1, names="of another split")
    _, out, _ = call_main(
        "unet_ddp.__main__", [*argv[:3], "--against", "grouped/other", "-o", "o"], str(folder)
    )
    assert "  warning: it had another split, and may have been trained on some of them" in out


def rewrite(folder: Path, rows: list[list[str]]) -> str:
    """Write a per_image.csv, and return its path below the folder."""
    with (folder / "per_image.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return "per_image.csv"


def test_a_mistake_is_one_line(folder: Path) -> None:
    with (folder / "two/evaluation/per_image.csv").open(newline="", encoding="utf-8") as file:
        rows = [*csv.reader(file)]
    save(folder / "named", 0, labels=Labels((0, 255), names=("road", "car")))
    for other, said in (
        ("nowhere.csv", "nowhere.csv"),
        (
            "named",
            "--against named/best.pt: its classes are road, car, not 0, 255; name a checkpoint for "
            "the same classes, or evaluate it again",
        ),
        (rewrite(folder, [row[:3] for row in rows]), "its classes are none, not 0, 255"),
    ):
        lines, err = evaluate(folder, "-m", "one", "-o", "none", "--against", other)
        assert not lines and err.startswith("error: ") and said in err and err.count("\n") == 1, err
    for changed, said in (
        (rows[:-2], "has 8 images, 10 are scored here, and 8 are in both; score the same images, or "),
        ([*rows, ["other", *rows[1][1:]]], "has 11 images, 10 are scored here, and 10 are in both"),
        ([rows[0], ["other", *rows[1][1:]], *rows[2:]], "has 10 images, 10 are scored here, and 9 "),
        ([*rows[:-1], [*rows[-1][:-1], "x"]], "line 11 is 'jx,"),
        ([*rows[:-1], rows[-1][:5]], "line 11 is 'jx,"),
    ):  # fmt: skip
        other = rewrite(folder, changed)
        lines, err = evaluate(folder, "-m", "one", "-o", "none", "--against", other)
        assert not lines and err.startswith("error: --against per_image.csv: ") and said in err, err
    assert not (folder / "none").exists()


def test_several_ranks_print_what_one_does(ranks: Ranks, folder: Path) -> None:
    printed = []
    for size in (1, 2):
        argv = ["evaluate", *GIVEN, "-m", "one", "-o", "ranks", "--against", "two"]
        outcomes = ranks.run(size, call_main, "unet_ddp.__main__", argv, str(folder))
        assert [(status, err) for status, _, err in outcomes] == [(0, "")] * size, outcomes
        printed.append("".join(out for _, out, _ in outcomes))
    assert printed[0] == printed[1] and "(95 % interval " in printed[0]
    argv = ["evaluate", *GIVEN, "-m", "one", "-o", "none", "--against", "nowhere"]
    outcomes = ranks.run(2, call_main, "unet_ddp.__main__", argv, str(folder))
    assert [status for status, *_ in outcomes] == [2, 2]
    assert (
        "".join(err for *_, err in outcomes).count("error: --against nowhere: checkpoint not found")
        == 1
    )


@pytest.mark.thorough
def test_objects_are_compared_by_their_precision(tmp_path: Path) -> None:
    """From a checkpoint, and from per_image.csv, which has the counts of objects, too."""
    make_set(tmp_path, 8, size=(32, 32))
    for path in (tmp_path / "masks").iterdir():
        numbers = np.zeros((32, 32), np.uint8)
        numbers[2:12, 2:12], numbers[18:30, 10:30] = 1, 2
        Image.fromarray(numbers).save(path)
    argv = ["--images", "imgs", "--masks", "masks", "--instances", "--width", "2", "--workers", "0"]
    for seed in "12":
        more = ["--epochs", "1", "-b", "2", "--seed", seed, "--exp-name", seed]
        assert call_train([*argv, *more], str(tmp_path))[0] == 0
        evaluate(tmp_path, "-m", f"checkpoints/{seed}")
    found = []
    for other in ("checkpoints/2", "checkpoints/2/evaluation"):
        lines, err = evaluate(tmp_path, "-m", "checkpoints/1", "-o", "o", "--against", other)
        assert not err
        found.append(lines[-4:])
    assert found[0] == found[1] and found[0][0].startswith("  AP at IoU 0.5 0.")
