"""Kinds of images that training has few of, and the lines about those that are predicted badly."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.evaluation.examples import example_evaluation
from tests.ranks import call_main
from unet_ddp.checks.check import prepare_data
from unet_ddp.cli import parse_train
from unet_ddp.data.dataset import PreparedData, RareKind
from unet_ddp.extras.report.rare import describe_rare

DARK, LIGHT = (20, 200), (200, 20)  # grey of background and object


def write(
    folder: Path, rows: list[tuple[str, str, str]], *greys: tuple[int, int], side: int = 32
) -> PreparedData:
    """Write images of a background and an object, and a list with (name, group, split); return the data."""
    lines = ["image,mask,group,split\n"]
    for k, (name, group, split) in enumerate(rows):
        mask = np.zeros((side + k * (len(greys) == 0), side), np.uint8)
        mask[4:12, 4:12] = 255
        background, grey = greys[k] if greys else DARK
        for kind, pixels in (("imgs", np.where(mask > 0, grey, background)), ("masks", mask)):
            path = folder / kind / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
        lines.append(f"imgs/{name}.png,masks/{name}.png,{group},{split}\n")
    (folder / "list.csv").write_text("".join(lines), encoding="utf-8")
    return prepare_data(parse_train(["--list", str(folder / "list.csv")]).data, seed=0)


def sides(training: int, validation: int) -> list[str]:
    return ["training"] * training + ["validation"] * validation


def test_images_of_which_training_has_few_are_found(tmp_path: Path) -> None:
    """One light image of ten in training, two of three in validation; groups and folders likewise."""
    greys = [DARK] * 9 + [LIGHT] + [LIGHT, DARK, LIGHT]
    names = [
        f"{'fluorescence' if grey is DARK else 'stained'}/{k:02}" for k, grey in enumerate(greys)
    ]
    rows = [(name, name[:3], side) for name, side in zip(names, sides(10, 3), strict=True)]
    rare = {kind.name: kind for kind in write(tmp_path, rows, *greys).rare}
    assert set(rare) == {"group sta", "folder imgs/stained", "images dark on light"}
    for kind in rare.values():
        assert (kind.share, kind.rows) == (0.1, [1, 2])  # by name: fluorescence/11 is the first


@pytest.mark.parametrize("light", [1, 2])
def test_more_than_a_tenth_is_not_rare(tmp_path: Path, light: int) -> None:
    greys = [*[LIGHT] * light, *[DARK] * (11 - light), LIGHT]
    rows = [(f"{k:02}", "", side) for k, side in enumerate(sides(11, 1))]
    assert [kind.name for kind in write(tmp_path, rows, *greys).rare] == [
        "images dark on light"
    ] * (light == 1)


def test_groups_that_are_never_split_and_sizes_of_all_kinds_are_no_kinds(tmp_path: Path) -> None:
    rows = [(f"{k:02}", f"car{k // 5}", side) for k, side in enumerate(sides(20, 5))]
    assert write(tmp_path, rows).rare == []


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
