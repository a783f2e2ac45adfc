"""Rules that masks of classes that overlap follow."""

from __future__ import annotations

from functools import reduce
from operator import or_
from pathlib import Path
from shlex import quote

import numpy as np

from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.errors import UserError, join_some
from unet_ddp.extras.overlap.bits import MOST_CLASSES, SMALL
from unet_ddp.extras.overlap.checks import code_of
from unet_ddp.extras.overlap.folders import split_marked
from unet_ddp.extras.overlap.labels import IGNORED_BIT, OverlapLabels

_BANDS = 3  # of colour masks
_WHITE = 255  # of grey masks with 8 bit


def infer_overlap_labels(masks: MaskValues, config: DataConfig) -> OverlapLabels:
    """Return the labels of a data set whose mask values are bit fields.

    Raises:
        UserError: the values are none, or have too many bits.
    """
    if masks.lossy is not None:
        raise UserError(
            f"{masks.lossy}: --overlap: lossy compression changes the classes' bits; save the masks as "
            "PNG or TIFF"
        )
    names, ignore, void = config.class_names, config.ignore_index, None
    if masks.names:
        names = names or masks.names
        _check_folders(names, masks, ignore)
        ignore, void = None, ignore  # of their files: in their codes, it is a bit
    values = _find_counted(masks, names, ignore)
    _refuse_white(masks, values)
    if config.ignore_index is not None and not any(values):
        raise UserError(
            f"--ignore-index {config.ignore_index}: all masks are empty but for it: there is nothing to segment; "
            "check the masks, or leave it out"
        )
    count = _BANDS if masks.rgb else max(values, default=0).bit_length()
    if names is not None and (len(names) < count or len({*names}) < len(names)):
        raise UserError(
            f"--class-names: {len(names)} names for {count} classes; give one for each, all different"
        )
    count = len(names) if names else count
    if not 2 <= count <= MOST_CLASSES:
        shown = join_some(list(map(str, masks.values)), 12)
        raise UserError(
            f"--overlap: {count} classes, mask values {shown}; expected 2 to {MOST_CLASSES}. Bit k of a value "
            "is class k; masks may also be a folder for each class"
        )
    labels = OverlapLabels.of(count, names, rgb=masks.rgb, ignore=ignore, void=void)
    for value, path in masks.examples.items():
        labels.to_ids(np.array([value], np.int32), Path(path))
    return labels


def _find_counted(
    masks: MaskValues, names: tuple[str, ...] | None, ignore: int | None
) -> list[int]:
    """Return the values of masks whose pixels are not ignored."""
    values = [value for value in masks.values if value != ignore]
    if not masks.rgb:
        values = [value for value in values if not value & IGNORED_BIT]
    if names is not None and len(names) <= SMALL:  # see `OverlapLabels.nodata`
        values = [value for value in values if value != 1 << SMALL]
    return values


def _refuse_white(masks: MaskValues, values: list[int]) -> None:
    """Refuse masks in which white, which has the bits of all classes, is the only value of two or more of these."""
    if masks.names:  # the bits are those of files
        return
    white = (1 << _BANDS) - 1 if masks.rgb else _WHITE
    codes = {value: code_of(value, rgb=masks.rgb) for value in values}
    others = reduce(or_, (code for code in codes.values() if code != white), 0)
    found = [value for value, code in codes.items() if code == white]
    if not found or (white & ~others).bit_count() < 2:
        return
    shown = masks.show(found[:1])
    raise UserError(
        f"--overlap: {shown} in {masks.examples[found[0]]} is all {white.bit_count()} classes at once, and some occur "
        "nowhere else; leave --overlap out if white is one class, or save a page or a folder for each class, or use "
        f"--ignore-index {quote(shown)} if it marks pixels to ignore"
    )


def _check_folders(names: tuple[str, ...], masks: MaskValues, void: int | None) -> None:
    """Refuse names that the masks' folders do not have, and 0 as void; in a pack, also another order of the bits."""
    if void == 0:
        raise UserError(
            "--ignore-index 0: in the masks of a folder for each class, 0 is where the class is not; name another "
            "value, or leave it out"
        )
    mask = Path(next(iter(masks.examples.values())))
    is_same = {*names} == {*masks.names} if split_marked(mask) else names == masks.names
    if not is_same:
        raise UserError(
            f"--class-names: {', '.join(names)}; the folders of the masks are {', '.join(masks.names)}: leave it "
            "out, or name all of these"
        )
