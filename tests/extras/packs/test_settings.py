"""A pack is read with the settings of masks that it was made with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.extras.packs.test_command import pack
from unet_ddp.checks.check import prepare_data
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.overlap.checks import check_packed_classes
from unet_ddp.extras.overlap.labels import OverlapLabels
from unet_ddp.extras.packs.pairs import open_pack
from unet_ddp.extras.packs.scored import check_scored

NONE: dict[str, Any] = {
    "overlap": False,
    "instances": False,
    "ignore_index": None,
    "mask_threshold": None,
}


def save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8)).save(path)


def make(folder: Path, *, in_folders: bool = False, **settings: Any) -> DataConfig:
    """Images whose masks have the values 0 to 3 in quarters, or the same bits as a folder for each of two classes."""
    values = np.kron([[0, 1], [2, 3]], np.ones((16, 16)))
    for k, name in enumerate("abcdef"):
        save(folder / "imgs" / f"{name}x.png", np.full((32, 32, 3), 20 * k))
        if in_folders:
            save(folder / "masks" / "organ" / f"{name}x.png", values % 2 * 255)
            save(folder / "masks" / "tumour" / f"{name}x.png", (values > 1) * 255)
        else:
            save(folder / "masks" / f"{name}x.png", values)
    return DataConfig(images=str(folder / "imgs"), masks=str(folder / "masks"), **settings)


def prepare(config: DataConfig) -> PreparedData:
    return prepare_data(config, parts=DATA_PARTS, seed=0)


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({"overlap": True}, "--overlap"),
        ({"overlap": True, "in_folders": True}, "--overlap"),
        ({"instances": True}, "--instances"),
        ({"ignore_index": 3}, "--ignore-index 3"),
        ({"mask_threshold": 0}, "--mask-threshold 0"),
        ({"mask_threshold": 1, "ignore_index": 3}, "--ignore-index 3 --mask-threshold 1"),
        ({"overlap": True, "in_folders": True, "ignore_index": 7}, "--overlap --ignore-index 7"),
    ],
)
def test_a_setting_of_the_masks_that_is_left_out_is_asked_for(
    tmp_path: Path, settings: dict[str, Any], flags: str
) -> None:
    """Else numbers, bits or values to ignore would be classes."""
    config = make(tmp_path, **settings)
    own = pack(config, tmp_path / "pack")
    assert prepare(own).labels == prepare(config).labels
    with pytest.raises(UserError) as raised:
        prepare(replace(own, **NONE))
    assert str(raised.value) == (
        f"{tmp_path}/pack: its masks were packed with {flags}; give the same, or pack the images again"
    )


def test_another_value_to_ignore_is_said_beside_that_of_the_pack(tmp_path: Path) -> None:
    own = pack(make(tmp_path, ignore_index=3), tmp_path / "pack")
    with pytest.raises(UserError, match=r"packed with --ignore-index 3 \(not 2\); give the same"):
        prepare(replace(own, ignore_index=2))


def test_settings_that_a_pack_was_made_without_may_be_given(tmp_path: Path) -> None:
    """As of the files: nothing of them is in the pack."""
    config = make(tmp_path)
    own = pack(config, tmp_path / "pack")
    for settings in ({"ignore_index": 3}, {"instances": True}, {"mask_threshold": 0}):
        assert (
            prepare(replace(own, **settings)).labels == prepare(replace(config, **settings)).labels
        )


def test_numbered_objects_may_be_one_class(tmp_path: Path) -> None:
    own = pack(make(tmp_path, instances=True), tmp_path / "pack")
    assert prepare(replace(own, instances=False, mask_threshold=0)).labels.num_classes == 2


def test_masks_that_were_packed_with_a_threshold_may_be_read_in_another_way(tmp_path: Path) -> None:
    config = make(tmp_path, mask_threshold=0)
    own, none = pack(config, tmp_path / "pack"), {"mask_threshold": None}
    for settings in ({"mask_threshold": 2}, {"classes": 4}, {"instances": True}, {"overlap": True}):
        expected = prepare(replace(config, **{**none, **settings})).labels
        assert prepare(replace(own, **{**none, **settings})).labels == expected


def test_masks_of_classes_that_overlap_are_not_scored_as_those_that_do_not(tmp_path: Path) -> None:
    pairs = prepare(pack(make(tmp_path, overlap=True, in_folders=True), tmp_path / "p")).split
    for labels in (Labels((0, 1, 2, 3)), Labels((0, 1))):
        with pytest.raises(
            UserError, match=r"p: the classes of its masks are organ, tumour, those"
        ):
            check_packed_classes(pairs.validation, labels, "p")


BITS = OverlapLabels((1, 2))
NUMBERS = ObjectLabels.of(("cell",))
FOREGROUND = Labels((0, 255), threshold=0)
CLASSES = Labels((0, 1, 2, 3))


@pytest.mark.parametrize(
    ("settings", "labels", "said"),
    [
        ({"overlap": True}, CLASSES, "--overlap, and the network was trained without;"),
        ({"overlap": True}, NUMBERS, "--overlap, and the network was trained without;"),
        ({"overlap": True}, BITS, ""),
        ({"overlap": True}, FOREGROUND, ""),
        ({"instances": True}, BITS, "--instances, and the network was trained without;"),
        ({"instances": True}, CLASSES, "--instances, and the network was trained without;"),
        ({"instances": True}, Labels((0, 255)), "--instances, and the network was"),
        ({"instances": True}, NUMBERS, ""),
        ({"instances": True}, FOREGROUND, ""),
        ({"instances": True}, Labels((0, 1)), ""),
        ({"ignore_index": 3}, CLASSES, "--ignore-index 3, and the network was trained without;"),
        ({"ignore_index": 3}, NUMBERS, "--ignore-index 3, and the network was trained without;"),
        ({"ignore_index": 3}, FOREGROUND, "--ignore-index 3, and the network was trained without;"),
        ({"ignore_index": 3}, Labels((0, 1, 3), ignore=2), "trained with --ignore-index 2;"),
        ({"ignore_index": 3}, Labels((0, 1, 2), ignore=3), ""),
        ({"ignore_index": 3}, Labels((0, 1, 2, 3), names=("a", "b", "c", "unsure")), ""),
        ({"ignore_index": 9, "classes": 4}, CLASSES, ""),
        ({"overlap": True, "in_folders": True, "ignore_index": 7}, BITS, ""),
        ({}, Labels((0, 1, 2), ignore=3), ""),
        ({}, NUMBERS, ""),
        ({}, BITS, ""),
    ],
)
def test_a_network_scores_masks_as_they_were_packed(
    tmp_path: Path, settings: dict[str, Any], labels: Labels, said: str
) -> None:
    """What may be meant is scored: foreground, a value that no mask has, or classes that the user has named."""
    pack(make(tmp_path, **settings), tmp_path / "pack")
    pairs = open_pack(tmp_path / "pack")
    if not said:
        check_scored(pairs, labels)
        return
    with pytest.raises(UserError, match=rf"/pack: its masks were packed with .*{said}"):
        check_scored(pairs, labels)
