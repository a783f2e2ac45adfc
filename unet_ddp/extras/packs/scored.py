"""A check of packs that are scored: a network reads the masks as they were packed."""

from __future__ import annotations

from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pairs
from unet_ddp.errors import UserError
from unet_ddp.extras.packs.pack_columns import StoredColumn
from unet_ddp.extras.packs.pack_index import ROWS
from unet_ddp.extras.packs.pairs import PackedPairs


def check_scored(pairs: Pairs, labels: Labels) -> None:
    """Raise a UserError if a network's `labels` read a pack's bits, numbers or value to ignore as other classes.

    What a pack was made without may be in the labels, as in training. An earlier pack says nothing.
    """
    if not isinstance(pairs, PackedPairs):
        return
    index, trained = pairs.pack.index, "without"
    if index.overlap and not _reads_bits(labels):
        packed = "--overlap"
    elif index.instances and not _reads_numbers(labels):
        packed = "--instances"
    elif index.ignore_index is not None and not index.class_names and _counts(pairs, labels):
        packed = f"--ignore-index {index.ignore_index}"
        if labels.ignore is not None:
            trained = f"with --ignore-index {labels.ignore}"
    else:
        return
    raise UserError(
        f"{pairs.pack.folder}: its masks were packed with {packed}, and the network was trained {trained}; name another "
        "by --model, or pack masks like those of its training"
    )


def _reads_bits(labels: Labels) -> bool:
    """Return whether bits may be meant: colours are the same either way, and above a threshold any is foreground."""
    return labels.may_overlap or labels.rgb or labels.threshold is not None


def _reads_numbers(labels: Labels) -> bool:
    """Return whether numbers may be meant: of objects, of one in each image, or as foreground above a threshold."""
    is_foreground = labels.threshold is not None or sorted(labels.values) == [0, 1]
    return labels.objects is not None or is_foreground


def _counts(pairs: PackedPairs, labels: Labels) -> bool:
    """Return whether the pack's value to ignore is in its masks, and a class for which the user gave no name."""
    void = pairs.pack.index.ignore_index
    if void == labels.ignore or (labels.names and void in labels.values):
        return False
    column: StoredColumn = pairs.pack.columns["value"]
    blocks = range(0, column.shape[0], ROWS)
    return any((column[start : start + ROWS] == void).any() for start in blocks)
