"""docs/files.md has each file, column and key that a run and an evaluation write, and no other."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.ranks import call_main
from tests.test_docs import ROOT


def read_table(title: str) -> dict[str, str]:
    """The names in the first column of a section's table, each with the rest of its row."""
    page = (ROOT / "docs/files.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| (.*)\|$", section, re.M)
    return {name: rest for first, rest in rows for name in re.findall(r"`([^`]+)`", first)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all files that there may be, and its evaluation."""
    folder = tmp_path_factory.mktemp("page")
    argv = [*data_flags(make_set(folder, 16)), "--epochs", "2", "-b", "2", "--workers", "0"]
    argv += ["--width", "2", "--save-every", "1", "--lr", "auto", "--profile", "--ema", "0.5"]
    argv += ["--device", "cpu", "--checkpoints", str(folder / "run")]
    status, _, err = call_main("train", argv, str(folder))
    assert status == 0, err
    status, _, err = call_main(
        "unet_ddp.__main__", ["evaluate", "-m", str(folder / "run/best.pt")], str(folder)
    )
    assert status == 0, err
    return folder / "run"


def test_the_files_of_a_run_are_on_the_page(run: Path) -> None:
    found = {path.name for path in run.iterdir() if path.is_file()}
    shown = {re.sub(r"\d+", "1", name) for name in read_table("A run")}
    plain = {re.sub(r"(tfevents)\..*", r"\1.*", name) for name in found}
    assert {re.sub(r"\d+", "1", name) for name in plain} == shown


def test_the_columns_of_metrics_are_on_the_page(run: Path) -> None:
    with (run / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    columns = {re.sub(r"^(dice|iou)_\d+$", r"\1_CLASS", name) for name in rows[0]}
    table = read_table("Columns of metrics.csv")
    others = {"tversky_loss", "lovasz_loss", "focal_loss", "own_loss"}  # of another --loss
    assert columns == {*table} - others
    for name, rest in table.items():
        if rest.startswith("0 to 1 |") and name in rows[0]:
            assert all(0 <= float(row[name]) <= 1 for row in rows), name


def test_the_keys_of_checkpoints_are_on_the_page(run: Path) -> None:
    table = read_table("Keys of a checkpoint")
    last, best = (
        torch.load(run / name, weights_only=True).keys() for name in ("last.pt", "best.pt")
    )
    only_last = {name for name, rest in table.items() if rest.startswith("`last.pt`")}
    assert last | {"sources"} == {*table}  # there are no parts of one's own
    assert best | {"sources"} == {*table} - only_last


def test_the_files_of_an_evaluation_are_on_the_page(run: Path) -> None:
    table = read_table("An evaluation")
    assert {path.name for path in (run / "evaluation").iterdir()} == {*table}
    for name in ("threshold.csv", "calibration.csv", "per_image.csv"):
        columns = (run / "evaluation" / name).read_text().splitlines()[0].split(",")
        plain = [re.sub(r"^(\w+_)\d+$", r"\1", column) for column in columns]
        assert all(f"`{column}`" in table[name] for column in plain), name
    with (run / "split.csv").open(newline="") as file:
        assert all(
            f"`{each}`" in read_table("A run")["split.csv"] for each in next(csv.reader(file))
        )
    assert "classes" in json.loads((run / "evaluation/scores.json").read_text())
