"""Kinds of images that training has few of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unet_ddp.checks.check import prepare_data
from unet_ddp.cli import parse_train
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.data.dataset import PreparedData

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
    return prepare_data(
        parse_train(["--list", str(folder / "list.csv")]).data, parts=DATA_PARTS, seed=0
    )


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


def test_an_image_without_a_group_is_of_no_kind(tmp_path: Path) -> None:
    """Nor is one without a folder: a list may name both for some images only."""
    groups = ["g"] * 10 + ["g", "", ""]
    rows = [
        (f"{k:02}", group, side)
        for k, (group, side) in enumerate(zip(groups, sides(10, 3), strict=True))
    ]
    assert write(tmp_path, rows, *[DARK] * 13).rare == []
