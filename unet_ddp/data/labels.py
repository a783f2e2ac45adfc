"""Mask values, as files contain them, to class ids, as the network counts them, and back; other code does not depend on their kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from unet_ddp.data.label_values import ClassValues, refuse_unknown
from unet_ddp.data.masks import (
    IGNORE_ID,
    Band,
    Flags,
    Ids,
    Mask,
    ObjectMasks,
    Regions,
    Shares,
    Size,
    allocate,
)
from unet_ddp.data.readers.base import Codes
from unet_ddp.errors import UserError, from_plain, join_some, shorten
from unet_ddp.plugins import find
from unet_ddp.plugins.built_in import BUILT_IN

_SHOWN = 16  # classes in a line


@dataclass(frozen=True)
class Labels(ClassValues):
    """Classes of a data set: class id k is the mask value `values[k]`; subclasses mean other kinds of masks.

    They are ObjectLabels (extras/objects/labels.py) and OverlapLabels (extras/overlap/labels.py).

    Example:
        labels = Labels(values=(0, 255), names=("background", "car"))
        print(labels.class_names[1], labels.to_ids(np.array([[0, 255]]), Path("mask.png")))  # car [[0 1]]

    Args:
        values: mask values, at most 255 of them, all different: 0 to 65535, or colours as 0xRRGGBB with `rgb`.
        rgb: True if masks are colour images.
        ignore: mask value of pixels that loss and scores leave out; None: all count.
        palette: colours (red, green, blue), 0 to 255, of the indices in palette masks.
        names: one for each value, all different; None: the values are shown.
        threshold: two classes: mask values above it are the larger of `values`, the others the smaller.
        rounded: a mask value of no class counts as that of the nearest colour or grey.

    Raises:
        UserError: no mask can have these values, or some are equal.
    """

    kind: ClassVar[str] = "classes"
    """Its name in the points "labels" and "heads", in checkpoints and in messages."""
    layer_opacity: ClassVar[int] = 50
    """Percent with which a page lays `layer` over a photo; 100 for one with outlines of the foreground alone."""
    may_overlap: ClassVar[bool] = False
    """A pixel may have several classes: masks have a folder, band or page for each, and bit k of their values is class k."""

    @property
    def is_binary(self) -> bool:
        """True if the classes are background and foreground: a threshold decides."""
        return self.num_classes == 2 and not self.may_overlap

    @property
    def num_ids(self) -> int:
        """Number of different class ids in a mask; the largest is one less, but for IGNORE_ID."""
        return self.num_classes

    @property
    def objects(self) -> ObjectMasks | None:
        """These labels, if predicted masks have numbers of objects; None if they have class ids."""
        return None

    @property
    def void(self) -> int | None:
        """Value of pixels to ignore in files of which several become one mask; None if there are none."""
        return None

    @property
    def mask_suffix(self) -> str:
        """Suffix of the smallest kind of file that can hold a mask."""
        return "png"

    @property
    def foreground(self) -> Sequence[int]:
        """Ids of the classes of which there are objects."""
        if self.is_binary:
            return [1]
        return [k for k, value in enumerate(self.values) if value > 0]

    @property
    def foreground_names(self) -> list[str]:
        """Names of the classes of `foreground`."""
        return [self.class_names[k] for k in self.foreground]

    @property
    def nodata_tag(self) -> int | None:
        """Value that a GeoTIFF's header names as no data; None if no value is."""
        return None if self.rgb else self.nodata

    def to_ids(self, codes: Codes, path: Path) -> Ids:
        """Return the class ids uint8 of mask values (H, W), or (N,) without places; 255 where ignored.

        Raises:
            UserError: a value belongs to no class; it names `path`.
        """
        if codes.dtype == np.uint8 and codes.size:  # by table: a tenth of the time
            table, is_known = self._bytes
            largest = int(codes.max())
            if is_known[: largest + 1].all() or is_known.take(codes).all():
                translated = bytearray(codes).translate(table)
                return np.frombuffer(translated, np.uint8).reshape(codes.shape)
        ids, is_known = self.search(codes)
        refuse_unknown(self, codes, is_known, path)
        return ids

    @cached_property
    def _bytes(self) -> tuple[bytes, Flags]:
        """Class id of every value of 8 bits, and whether it has one."""
        ids, known = self.search(np.arange(256, dtype=np.int32))
        return ids.tobytes(), known

    def from_file(self, codes: Codes, path: Path) -> Mask:
        """Return the mask of an earlier prediction, from the values in its file; some may be `nodata`."""
        # Its values are those of classes; a threshold is for the masks of training.
        return replace(self, ignore=self.nodata, threshold=None, rounded=False).to_ids(codes, path)

    def decode(
        self, bands: Iterable[Band], size: Size, *, enlarged: float = 1.0
    ) -> tuple[Mask, Shares | None]:
        """Return the mask (H, W) of a prediction in bands, and each pixel's probability of an object or None.

        The scores were `enlarged` from the network's scale to `size` by this factor of a side.
        """
        ids = allocate(size, np.uint8)
        for band in bands:
            ids[band.rows] = band.ids
        return ids, None

    def ids_of(self, mask: Mask) -> Ids:
        """Return the class ids (H, W) in a predicted mask."""
        return mask

    def layer(self, mask: Mask) -> Ids:
        """Return the class ids (H, W) to draw of a mask."""
        return mask

    def planes(self, ids: Ids) -> Iterator[Flags]:
        """Yield for each class where class ids have it, in the shape of `ids`."""
        yield from (ids == k for k in range(self.num_classes))

    def regions(self, mask: Mask) -> Iterable[Regions]:
        """Return where objects are: connected pixels of a class; of two classes, the first has none."""
        counted = mask == 1 if self.is_binary else mask < self.num_classes
        return [Regions(mask, counted, mask, are_numbers=False)]

    def average(self, others: Sequence[Labels]) -> Labels:
        """Return the labels of an ensemble, from its networks' labels."""
        return self

    def describe(self) -> str:
        """Return a line with the classes and their mask values."""
        names = [self.show(value) for value in self.values]
        if self.names:
            names = [f"{n} ({v})" for n, v in zip(self.names, names, strict=True)]
        line = f"classes: {self.num_classes}, mask values {join_some(names, _SHOWN)}"
        if self.threshold is not None:
            line += f", thresholded at {self.threshold}"
        if self.rounded:
            line += "; other values count as the nearest"
        if self.ignore is not None:
            line += f"; {self.show(self.ignore)} is ignored"
        return line

    def describe_tuning(self) -> list[str]:
        """Return a line about what a `Tuner` (heads.py) has chosen, if there is anything to choose."""
        return []

    def doubt(self, values: Sequence[int], shown: str) -> list[str]:
        """Return a warning if the values of all masks look like another kind of labels, or one like no label."""
        *ids, last = self.values
        if self.names or self.rgb or last != IGNORE_ID or len(ids) < 2 or ids[-1] > 63:
            return []
        return [
            f"mask value {last} is trained as a class: if it marks pixels without a label, use --ignore-index "
            f"{last}; if not, name the classes with --class-names"
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self) | {
            "kind": self.kind,
            "values": list(self.values),
            "palette": [list(colour) for colour in self.palette] if self.palette else None,
            "names": list(self.names) if self.names else None,
        }

    @classmethod
    def from_dict(cls, plain: Any) -> Labels:
        """Return the labels that `to_dict` gave, of their kind, checked.

        A file starts no code: its kind is one of the package's.
        """
        if not isinstance(plain, Mapping):
            raise UserError(f"{shorten(plain)}; expected fields by name")
        values = dict(plain)
        kind = values.pop("kind", None)
        if kind not in [*BUILT_IN["labels"]]:
            raise UserError(
                f"kind: {shorten(kind)}; expected one of {', '.join(BUILT_IN['labels'])}"
            )
        return from_plain(find("labels", kind), values)
