"""Masks with soft edges, or as JPEG, of more than two classes: ``--round-masks``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import MaskValues, name_labels, refuse_absent
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.extras.palettes.rules import match_palette

_MISSED = 0.03  # of the pixels: far from all classes, a value of edges or noise has no more
_STANDS_OUT = 1.2  # times as many pixels as the next value, of soft edges, has a class
_EDGES = 3  # times as many pixels as the rarest class: no value of soft edges has more
_NOISE = 1e-4  # of the pixels: a class has more
# Classes may differ by what equal steps between them would be, divided by these.
_APART = 0.5, 0.7, 1, 2, 4, 16, 64, 256
_AROUND = 0, 2, 4  # of 255: JPEG spreads a class so far
_MOST = 4096  # values that are compared with each other

_Points = NDArray[np.float64]  # (N, 3): colours
_Counts = NDArray[np.float64]


def round_labels(masks: MaskValues, config: DataConfig) -> Labels:
    """Return the classes of masks in which other values count as the nearest class.

    The palette names them; without one, they are the `--classes` values that stand out.

    Raises:
        UserError: neither is given, or not so many values stand out.
    """
    if config.palette is not None:
        return replace(match_palette(masks, config), rounded=True)
    if config.classes is None:
        raise UserError(
            "--round-masks: needs --classes N, or a --palette with the value of each class"
        )
    counts, ignore = masks.counts, config.ignore_index
    refuse_absent(ignore, masks)
    labels = Labels((), masks.rgb, ignore, masks.palette, rounded=True)
    chosen = [value for value in counts if value != ignore]
    if len(chosen) != config.classes:
        chosen = find_centres(counts, labels, config.classes, is_lossy=masks.lossy is not None)
    if not chosen:
        shown = masks.show(sorted(counts, key=counts.__getitem__, reverse=True))
        raise UserError(
            f"--round-masks: no {config.classes} of the {len(counts)} mask values stand out ({shown}); name the "
            "value of each class in a --palette"
        )
    labels = replace(labels, values=tuple(sorted(chosen)))
    return name_labels(labels, masks, config.class_names)


def find_centres(
    counts: Mapping[int, int], labels: Labels, number: int, *, is_lossy: bool
) -> list[int]:
    """Return the `number` values around which the others gather, or around the ignored one.

    `counts` are the pixels of each value. Lossy compression spreads a class over values close by, soft edges over
    all between two classes. Nothing is returned if not so many values stand out.
    """
    values = np.array(sorted(counts, key=lambda value: (-counts[value], value)), np.int32)
    pixels = np.array([counts[value] for value in values.tolist()], np.float64)
    points = labels.to_points(values)
    ignored = labels.to_points(np.array([labels.ignore or 0])[: labels.ignore is not None])
    noise = _NOISE * pixels.sum()
    step = np.ptp(points, axis=0).max(initial=0) / number
    best, most = list[int](), _STANDS_OUT
    for around in _AROUND if is_lossy else _AROUND[:1]:
        nearby = _sum_around(points[:_MOST], pixels[:_MOST], around)
        for least in (step / parts for parts in _APART if step / parts > around):
            found = _pick(points[:_MOST], nearby, number + 1, least, ignored)
            sizes = [*nearby[found], noise]
            chosen = [_centre(points, pixels, one, around) for one in found[:number]]
            far = np.min([_distance(points, one) for one in (*points[chosen], *ignored)], axis=0)
            missed = np.where(far > (step / 4 if is_lossy else 0), pixels, 0)
            rarest = pixels.sum() if is_lossy else pixels[chosen].min()
            is_clear = missed.max() <= min(_MISSED * pixels.sum(), _EDGES * rarest)
            if (
                is_clear
                and len({*chosen}) == number
                and sizes[number - 1] > most * max(sizes[number], noise)
            ):
                best, most = chosen, sizes[number - 1] / max(sizes[number], noise)
    return [int(value) for value in values[best]]


def _sum_around(points: _Points, pixels: _Counts, around: float) -> _Counts:
    """Return the pixels of each value and those so near to it."""
    if not around:
        return pixels
    return np.array([pixels[_distance(points, one) <= around].sum() for one in points])


def _pick(
    points: _Points, pixels: _Counts, number: int, least: float, ignored: _Points
) -> list[int]:
    """Return the places of the commonest values, each farther than `least` from those before it, and from ignored."""
    found: list[int] = []
    is_far = np.ones(len(points), bool)
    for one in ignored:
        is_far &= _distance(points, one) > least
    while len(found) < number and is_far.any():
        found.append(int(np.where(is_far, pixels, 0).argmax()))
        is_far &= _distance(points, points[found[-1]]) > least
    return found


def _centre(points: _Points, pixels: _Counts, one: int, around: float) -> int:
    """Return the place of the commonest value near one."""
    return int(np.where(_distance(points, points[one]) <= around, pixels, 0).argmax())


def _distance(points: _Points, one: _Points) -> NDArray[np.float64]:
    """Return how much each colour differs from one, in the channel that differs most."""
    largest: NDArray[np.float64] = np.abs(points - one).max(axis=1)
    return largest
