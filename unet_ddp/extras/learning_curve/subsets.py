"""The images of each training: nested sets of whole groups, as lists that train.py reads."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.pairs import Pair
from unet_ddp.errors import UserError
from unet_ddp.files import replacing, write_errors

_SHARES = 1 / 8, 1 / 4, 1 / 2, 1
_FEWEST = 3  # sizes: a line through two has no scatter

Groups = list[list[Pair]]


def group_training(data: PreparedData) -> Groups:
    """Return the training pairs by group, in the order of names; each alone if the split divides groups."""
    held_out = {data.groups.get(name) for name in data.split.validation.names()}
    is_divided = any(data.groups[name] in held_out for name in data.split.training.names())
    groups = defaultdict[str, list[Pair]](list)
    for pair in data.split.training:
        group = pair.name if is_divided else data.groups[pair.name]
        groups[group].append(pair)
    return [groups[name] for name in sorted(groups)]


def choose_sizes(groups: Groups, given: Sequence[int]) -> list[int]:
    """Return the numbers of groups to train on: those given, or 1/8, 1/4, 1/2 and all.

    Raises:
        UserError: there are too few groups.
    """
    count, images = len(groups), sum(map(len, groups))
    sizes = sorted(set(given)) or [round(count * share) for share in _SHARES]
    found = f"{images} images to train on"
    if count < images:
        found = f"{count} groups of {found}"
    if count < _FEWEST:
        raise UserError(
            f"{found}: a curve takes at least {_FEWEST}; label more, or count images with --group-pattern '(.+)'"
        )
    is_few = not given and count * _SHARES[0] < 1
    if is_few or len(sizes) < _FEWEST or sizes[-1] > count:
        example = sorted({1, 2, round(0.6 * count), count})
        some = " ".join(map(str, example))
        raise UserError(f"{found}: use {_FEWEST} or more numbers up to {count}, as --sizes {some}")
    return sizes


def draw_groups(groups: Groups, size: int, seed: int) -> list[Pair]:
    """Return the pairs of `size` groups: with one seed, a larger size contains a smaller one."""
    order = random.Random(seed).sample(groups, len(groups))
    return [pair for group in order[:size] for pair in group]


def write_list(path: Path, data: PreparedData, chosen: Sequence[Pair]) -> None:
    """Write a list with which the chosen pairs are trained on, and all others are left out.

    These stay in it, so that all trainings know the same classes and sizes of images.
    """
    names = {pair.name for pair in chosen}
    with (
        write_errors(path),
        replacing(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(("image", "mask", "split", "source"))
        for pair in (*data.split.training, *data.split.validation):
            side = "training" if pair.name in names else "test"
            writer.writerow((pair.image.absolute(), pair.mask.absolute(), side, pair.source))
