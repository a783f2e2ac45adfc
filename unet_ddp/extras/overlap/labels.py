"""Labels of classes that overlap: each pixel has a bit for every class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar

import numpy as np

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import (
    IGNORE_ID,
    Band,
    Colour,
    Flags,
    Ids,
    Mask,
    Regions,
    Shares,
    Size,
    allocate,
    unpack_colour,
    voc_colour,
)
from unet_ddp.data.readers.base import Codes
from unet_ddp.errors import Limit, UserError, join_some
from unet_ddp.extras.overlap.bits import MOST_CLASSES, SMALL, dtype_of, find_plane, join_planes
from unet_ddp.extras.overlap.folders import class_folders, split_marked

IGNORED_BIT = 1 << MOST_CLASSES
"""Of a mask's values, in which bit k is class k."""
_OUTLINE = 600  # pixels of an image's side for each pixel of an outline's width
_Share = Annotated[float, Limit(above=0, below=1)]


@dataclass(frozen=True)
class OverlapLabels(Labels):
    """Classes of which a pixel may have several, or none; a mask's value has a bit for each.

    `values` are these bits, 1, 2, 4 and so on. The three bands of colour masks are three classes.
    """

    kind: ClassVar[str] = "overlapping classes"
    may_overlap: ClassVar[bool] = True
    layer_opacity: ClassVar[int] = 100

    # Not in `repr`, by which samples in the cache are found: it says nothing of them.
    thresholds: tuple[_Share, ...] = field(default=(), repr=False)
    """Least probability of each class; empty for 0.5."""
    void: int | None = None
    """Value of pixels to ignore in the files of classes' folders; in their codes, it is IGNORED_BIT."""

    def __post_init__(self) -> None:
        """Refuse too few or too many classes."""
        super().__post_init__()
        count = len(self.values)
        if not 2 <= count <= MOST_CLASSES:
            raise UserError(f"{count} classes that overlap; expected 2 to {MOST_CLASSES}")
        if len(self.thresholds) not in (0, count):
            raise UserError(f"thresholds: {self.thresholds}; expected one for each class")

    @classmethod
    def of(
        cls,
        count: int,
        names: tuple[str, ...] | None,
        *,
        rgb: bool,
        ignore: int | None,
        void: int | None = None,
    ) -> OverlapLabels:
        """Return the labels of so many classes."""
        return cls(tuple(1 << k for k in range(count)), rgb, ignore, names=names, void=void)

    @property
    def num_ids(self) -> int:
        """Number of bit fields."""
        return 1 << (SMALL if self.num_classes <= SMALL else MOST_CLASSES)

    @property
    def named_values(self) -> dict[int, str]:
        """Empty: a value may be several classes."""
        return {}

    @property
    def foreground(self) -> Sequence[int]:
        """All class ids."""
        return range(self.num_classes)

    @cached_property
    def class_names(self) -> list[str]:
        """The names, or the classes' numbers from 1 on."""
        return list(self.names or map(str, range(1, self.num_classes + 1)))

    @cached_property
    def colours(self) -> list[Colour]:
        """PASCAL VOC's, without black."""
        return [voc_colour(k + 1) for k in range(self.num_classes)]

    @cached_property
    def nodata(self) -> int:
        """Mask value of pixels without data: a bit that no class has."""
        return 1 << SMALL if self.num_classes <= SMALL else IGNORED_BIT

    @property
    def nodata_tag(self) -> None:
        """Return None: pixels without data are in no class."""
        return

    def to_ids(self, codes: Codes, path: Path) -> Ids:
        """Return the bit fields (H, W) of mask values (H, W), 255 where ignored; errors name `path`."""
        values, bits = codes.astype(np.int32), self._find_bits(path)
        ignored = np.zeros_like(values, bool)
        if self.ignore is not None and not split_marked(path):  # there it is no sum of bits
            ignored = values == self.ignore
        if self.rgb:
            bands = unpack_colour(values)
            values = sum((band > 0).astype(np.int32) << k for k, band in enumerate(bands))
        else:
            ignored |= (values & IGNORED_BIT > 0) | (values == self.nodata)
        limit = 1 << self.num_classes
        wrong = values[~ignored & ((values < 0) | (values >= limit))]
        if wrong.size:
            raise UserError(
                f"{path}: value {wrong[0]}; expected bits of {self.num_classes} classes, 0 to {limit - 1}"
            )
        ids = join_planes((values & 1 << bit > 0 for bit in bits), self.num_classes)
        ids[ignored] = IGNORE_ID
        return ids

    def _find_bits(self, path: Path) -> Sequence[int]:
        """Return the place of each class's bit in a mask's values: among folders, that of its folder."""
        marked = split_marked(path)
        if marked is None or self.names is None:
            return range(self.num_classes)
        folders = class_folders(marked[0])
        if {*folders} != {*self.names}:
            raise UserError(
                f"{marked[0]}: its folders with masks are {', '.join(folders)}; the network's classes are "
                f"{', '.join(self.names)}: give it a folder for each, with a black mask if a class occurs nowhere"
            )
        return [folders.index(name) for name in self.names]

    def from_file(self, codes: Codes, path: Path) -> Mask:
        """Return the bit fields of a mask's values."""
        return self.to_ids(codes, path)

    def to_values(self, ids: Mask) -> Mask:
        """Return values in which bit k is class k; pixels without data have a bit that no class has."""
        values = sum(plane * np.uint16(1 << k) for k, plane in enumerate(self.planes(ids)))
        values = np.where(ids == IGNORE_ID, np.uint16(self.nodata), values)
        return values.astype(np.uint8 if self.num_classes <= SMALL else np.uint16)

    def decode(
        self, bands: Iterable[Band], size: Size, *, enlarged: float = 1.0
    ) -> tuple[Mask, Shares | None]:
        """Return the bit fields (H, W) of a prediction in bands."""
        ids = allocate(size, dtype_of(self.num_classes))
        for band in bands:
            ids[band.rows] = band.ids
        return ids, None

    def planes(self, ids: Ids) -> Iterator[Flags]:
        """Yield for each class where bit fields have it, in the shape of `ids`."""
        yield from (find_plane(ids, k) for k in range(self.num_classes))

    def regions(self, mask: Mask) -> Iterator[Regions]:
        """Yield the connected pixels of each class."""
        for k, plane in enumerate(self.planes(mask)):
            ids = np.broadcast_to(np.uint8(k), mask.shape)
            yield Regions(plane.view(np.uint8), plane, ids, are_numbers=False)

    def layer(self, mask: Mask) -> Ids:
        """Return the class ids (H, W) on the inner outlines of each class, and an id of none elsewhere.

        Where two outlines cross, the later class has the pixel.
        """
        import cv2

        width = 1 + max(mask.shape) // _OUTLINE
        window = np.ones((2 * width + 1, 2 * width + 1), np.uint8)
        drawn = np.full(mask.shape, IGNORE_ID - 1, np.uint8)
        drawn[mask == IGNORE_ID] = IGNORE_ID
        for k, plane in enumerate(self.planes(mask)):
            pixels = plane.view(np.uint8)
            drawn[plane & (cv2.erode(pixels, window) == 0)] = k
        return drawn

    def average(self, others: Sequence[Labels]) -> OverlapLabels:
        """Return labels with the mean thresholds of networks."""
        own = [each.limits for each in others if isinstance(each, OverlapLabels)]
        return replace(self, thresholds=tuple(map(fmean, zip(*own, strict=True))))

    @property
    def limits(self) -> tuple[float, ...]:
        """The least probability of each class."""
        return self.thresholds or (0.5,) * self.num_classes

    def describe(self) -> str:
        """Return a line with the classes."""
        ignore = self.ignore if self.void is None else self.void
        ignored = f"; {self.show(ignore)} is ignored" if ignore is not None else ""
        return f"classes: {join_some(self.class_names, MOST_CLASSES)}, which may overlap{ignored}"

    def doubt(self, values: Sequence[int], shown: str) -> list[str]:
        """Return a warning if the last class may be pixels without data, which `nodata` marks."""
        mark = 1 << SMALL
        *others, last = sorted({*values} - {self.ignore})
        if self.names or self.rgb or last != mark or max(others, default=0) >= mark >> 1:
            return []
        return [
            f"mask value {mark} is class 8, and class 7 occurs nowhere: if {mark} is of pixels without data, as in "
            f"predictions, use --ignore-index {mark}"
        ]

    def describe_tuning(self) -> list[str]:
        """Return a line about the thresholds."""
        pairs = zip(self.class_names, self.limits, strict=True)
        return [f"thresholds: {', '.join(f'{name} {limit:.3f}' for name, limit in pairs)}"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return super().to_dict() | {"thresholds": list(self.thresholds)}
