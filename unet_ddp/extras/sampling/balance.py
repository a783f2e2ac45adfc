"""``--balance``: rare classes are chosen as often as any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID, Ids
from unet_ddp.data.pairs import Pairs
from unet_ddp.errors import UserError

_CHUNK = 64  # bytes of bits that are counted together
_STREAM = 1  # of random numbers: those of (seed, epoch, index) alone are the augmentation's


def draw_by_class(config: DataConfig, table: Table, data: PreparedData, seed: int) -> PreparedData:
    """Return the data set with the draw of training images that --balance asks for."""
    classes = find_classes(table, data.labels, data.split.training)
    draw = ClassDraw(classes, share=config.balance / 100, seed=seed)
    return replace(data, draw=draw, notes=[*data.notes, draw.describe()])


def find_classes(table: Table, labels: Labels, pairs: Pairs) -> Ids:
    """Return packed bits (classes, pairs / 8): 1 if the mask of one of `pairs` has the class."""
    places = np.full(len(table.pairs), len(pairs), np.uint32)  # of rows among `pairs`
    places[table.rows_of(pairs)] = np.arange(len(pairs), dtype=np.uint32)
    bits = np.zeros((labels.num_classes, -(-len(pairs) // 8)), np.uint8)
    for rows, part, row in table.value_blocks():
        place = places[row]
        keep = place < len(pairs)
        values = table.columns["value"][part][keep].astype(np.int32)
        # All of them are known by now.
        ids = labels.to_ids(values, table.pairs[rows.start].mask)
        is_class = ids != IGNORE_ID
        place, ids = place[keep][is_class], ids[is_class]
        np.bitwise_or.at(bits, (ids, place >> 3), (128 >> (place & 7)).astype(np.uint8))
    return bits


class ClassDraw:
    """Draw of the image in each place of an epoch, and of the class that its crop is to show.

    A function of (seed, epoch, index), so the same in any process. As in class-uniform sampling (Zhu
    et al., 2019), a share of the samples is chosen by class: one of the classes that occur, then an image that has it.

    Args:
        bits: (classes, images / 8) uint8, as of `np.packbits`: 1 if the image has the class.
        share: of the samples that are chosen by class; the others are the images as they come.
        seed: of the run.

    Raises:
        UserError: no image has any class.
    """

    def __init__(self, bits: Ids, *, share: float, seed: int) -> None:
        self.share, self.seed = share, seed
        missing = -bits.shape[1] % _CHUNK
        self.bits = np.pad(bits, ((0, 0), (0, missing)))
        chunks = np.bitwise_count(self.bits).reshape(len(bits), -1, _CHUNK)
        self.ends = chunks.sum(axis=2, dtype=np.int64).cumsum(axis=1)  # (classes, chunks)
        self.classes = np.flatnonzero(self.ends[:, -1])
        if not len(self.classes):
            raise UserError(
                f"--balance {100 * share:g}: the training masks have no pixel of any class"
            )

    def describe(self) -> str:
        """Return a line for the user."""
        each = self.share / len(self.classes)
        return f"balance: {self.share:.0%} of the samples drawn by class, {each:.1%} for each"

    def __call__(self, epoch: int, index: int) -> tuple[int, int | None]:
        """Return the index of the image to take, and the class it was chosen for, None if for none."""
        generator = np.random.default_rng([self.seed, epoch, index, _STREAM])
        if generator.random() >= self.share:
            return index, None
        drawn = int(generator.choice(self.classes))
        place = int(generator.integers(self.ends[drawn, -1]))  # among the images that have it
        chunk = int(np.searchsorted(self.ends[drawn], place, side="right"))
        first = chunk * _CHUNK
        images = np.flatnonzero(np.unpackbits(self.bits[drawn, first : first + _CHUNK]))
        image = images[place - self.ends[drawn, chunk]]  # counted from the chunk's end
        return 8 * first + int(image), drawn
