"""The lines about kinds of images that training has few of, and that are predicted badly."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.checks.test_rare import DARK, LIGHT, sides, write
from tests.evaluation.examples import example_evaluation
from tests.ranks import call_main
from unet_ddp.data.dataset import RareKind
from unet_ddp.extras.report.rare import describe_rare


def test_a_rare_kind_is_named_if_its_dice_is_low() -> None:
    """Of three images: Dice 6 / 9 and 1 of the first two, 2 / 9 of the last, 12 / 22 of all."""
    first, second = example_evaluation().records
    good, bad = np.array([[1, 0], [0, 2]]), np.array([[2, 4], [3, 1]])
    records = [first, replace(second, confusion=good), replace(second, pair=2, confusion=bad)]
    evaluation = replace(example_evaluation(), records=records)
    kinds = [
        RareKind("images dark on light", 0.04, [2]),
        RareKind("folder a", 0.0, [0, 1]),
        RareKind("b", 0.1, [1, 2]),
    ]
    assert describe_rare(evaluation, kinds) == [
        "rare in training, predicted badly: images dark on light: 4 % of the training images, Dice 0.22 (all: 0.55)"
    ]
    assert describe_rare(evaluation, kinds[1:]) == []


def test_the_line_is_printed_and_on_the_page(tmp_path: Path) -> None:
    """At the end of training and by `report`; images dark on light are not learnt from others."""
    greys = [DARK] * 18 + [LIGHT]
    rows = [(f"{k:02}", "", side) for k, side in enumerate(sides(11, 8))]
    write(tmp_path, rows, *greys)
    argv = ["--list", "list.csv", "--width", "4", "--epochs", "6", "-b", "1", "--workers", "0"]
    argv += ["--lr", "0.01", "--augmentation", "none"]
    status, out, err = call_main("train", argv, str(tmp_path))
    said = re.findall(
        r"rare in training, predicted badly: images dark on light: 0 % of .*", out + err
    )
    assert (status, len(said)) == (0, 1), out + err
    page = tmp_path / "checkpoints/report.html"
    assert said[0] in page.read_text(encoding="utf-8")
    before = page.read_bytes()
    status, out, _ = call_main("unet_ddp.__main__", ["report"], str(tmp_path))
    assert (status, out) == (0, f"{said[0]}\nwrote checkpoints/report.html\n")
    assert page.read_bytes() == before
