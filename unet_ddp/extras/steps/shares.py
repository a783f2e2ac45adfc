"""``--shares``: each step takes a share of its images from each source of a list."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from unet_ddp.checks.rare import find_bright_objects, is_mixed
from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.samplers import Key, Stream, TrainingSampler, shuffled
from unet_ddp.errors import UserError, count_of, join_some, shorten

_STREAM = 2  # of random numbers: 1 is that of --balance
_APART = 1_000_003  # between the seeds of two sources, whose passes have the seeds after these


def give_shares(config: DataConfig, table: Table, data: PreparedData) -> PreparedData:
    """Return the data set with the order of training images that --shares asks for.

    Raises:
        UserError: see `plan_shares`.
    """
    order = plan_shares(config, table, data.split.training)
    if order is None:
        bright = count_of(
            int(find_bright_objects(table, data.split.training).sum()), "bright image"
        )
        line = f"shares: none, with {bright} of {len(data.split.training)}: no kind is rare, or one has too few"
        return replace(data, notes=[*data.notes, line])
    return replace(data, order=order, notes=[*data.notes, order.describe()])


def plan_shares(config: DataConfig, table: Table, training: Pairs) -> SharedOrder | None:
    """Return the order of training images in which each source has its share; None if auto finds no rare kind.

    The sources of auto are bright images and the others; see `find_bright_objects`.

    Raises:
        UserError: an image has no source, a source no share, or a share no images.
    """
    if config.shares == ("auto",):
        bright = find_bright_objects(table, training)
        rows_of = {"dark": np.flatnonzero(~bright), "bright": np.flatnonzero(bright)}
        halves = [Source(name, Fraction(1, 2), rows) for name, rows in rows_of.items()]
        return SharedOrder(halves, alternates=True) if is_mixed(bright) else None
    shares, place = config.read_shares(), config.pairs_file or config.images
    rows: dict[str, list[int]] = {}
    for row, source in enumerate(training.texts("source")):
        rows.setdefault(source, []).append(row)
    nameless = rows.pop("", [])
    if not rows:
        raise UserError(f"--shares: {place} has no column source; add one, with a name in each row")
    if nameless:
        image = training[nameless[0]].image
        raise UserError(f"--shares: {image} has no source in {place}; fill the column")
    for name in sorted(shares.keys() - rows.keys()):
        raise UserError(
            f"--shares {name}={_show(shares[name])}: no training image of {place} has this source; it has "
            f"{join_some([*map(shorten, sorted(rows))], 8)}"
        )
    for name in sorted(rows.keys() - shares.keys()):
        raise UserError(
            f"--shares: none for {shorten(name)}, the source of {count_of(len(rows[name]), 'image')} in {place}; "
            "name it, or remove its rows"
        )
    return SharedOrder(
        [Source(name, share, np.array(rows[name])) for name, share in shares.items()]
    )


@dataclass(frozen=True, eq=False)
class Source:
    """A source of images."""

    name: str
    share: Fraction
    """Of each global batch."""
    rows: NDArray[np.int64]
    """Its images among the training images."""


@dataclass(frozen=True, eq=False)
class SharedOrder:
    """Order of the training images in which each step has a share of each source.

    Each source has its own sequence of permutations, so an image comes again after all others of its source.
    """

    sources: list[Source]
    alternates: bool = False
    """A step may be too small for an image of each source."""

    def describe(self) -> str:
        """Return a line for the user."""
        found = [
            f"{_show(each.share)} {each.name} ({count_of(len(each.rows), 'image')})"
            for each in self.sources
        ]
        return f"shares of each step: {', '.join(found)}"

    def __call__(self, sampler: TrainingSampler) -> Stream:
        """Return the stream of a sampler's keys.

        Raises:
            UserError: a share of a step is less than an image.
        """
        images = sampler.images
        for source in self.sources:
            if source.share * images < 1 and not self.alternates:
                raise UserError(
                    f"--shares {source.name}={_show(source.share)}: of the {count_of(images, 'image')} of a step, "
                    f"it is {float(source.share * images):.2g}; use a share of at least "
                    f"{_show(Fraction(1, images))}, or a larger --batch-size"
                )
        return partial(self._keys, images, sampler.seed)

    def _keys(self, images: int, seed: int, positions: range) -> Iterator[Key]:
        """Yield the keys at some positions; each step is shuffled, or ranks might get one source each."""
        first, end = positions.start // images, -(-positions.stop // images)
        totals = count_images([source.share for source in self.sources], images, first)
        done, streams = next(totals), list[Iterator[Key]]()
        for k, (source, begin) in enumerate(zip(self.sources, done, strict=True)):
            size, last = len(source.rows), begin + (end - first) * images
            streams.append(shuffled(size, size, seed + _APART * k, range(begin, last)))
        for step, total in zip(range(first, end), totals, strict=False):
            keys: list[Key] = []
            for source, stream, before, after in zip(
                self.sources, streams, done, total, strict=True
            ):
                keys += ((n, int(source.rows[row])) for n, row in islice(stream, after - before))
            order = np.random.default_rng([seed, step, 0, _STREAM]).permutation(images)
            for place in order[positions.start % positions.step :: positions.step].tolist():
                yield keys[place]
            done = total


def count_images(shares: list[Fraction], images: int, step: int) -> Iterator[list[int]]:
    """Yield how many images all steps before `step` took from each source, then before the next one, and so on.

    Each step of `images` takes the whole images of each share. The sources that are furthest behind
    get the images that are left. So no step is an image or more from a share, and the sums are exact in regular intervals.
    """
    exact = [share * images for share in shares]
    period = math.lcm(*(each.denominator for each in exact))
    whole = [math.floor(each) for each in exact]
    parts = [int((each - math.floor(each)) * period) for each in exact]
    begun = step - step % period
    more = [part * (begun // period) for part in parts]
    for k in count(begun):
        if k >= step:
            yield [each * k + further for each, further in zip(whole, more, strict=True)]
        ahead = [more[s] * period - parts[s] * (k + 1) for s in range(len(parts))]
        for s in sorted(range(len(parts)), key=ahead.__getitem__)[: sum(parts) // period]:
            more[s] += 1


def _show(share: Fraction) -> str:
    """Return a share as a decimal number, if it is one of few digits."""
    decimal = f"{float(share):.4g}"
    return decimal if Fraction(decimal) == share else str(share)
