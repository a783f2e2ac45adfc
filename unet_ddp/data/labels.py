"""Mask values, as files contain them, to class ids, as the network counts them, and back; other code does not depend on their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from PIL import Image

from unet_ddp.data.masks import (
    IGNORE_ID,
    Band,
    Colour,
    Ids,
    Mask,
    Regions,
    Shares,
    Size,
    ValueTable,
    allocate,
    unpack_colour,
    voc_colour,
)
from unet_ddp.data.readers.base import Codes
from unet_ddp.errors import Limit, UserError, from_plain, join_some, shorten
from unet_ddp.plugins import find

_SHOWN = 16  # classes in a line

_Code = Annotated[int, Limit(0, 0xFFFFFF)]
_Int32 = Annotated[int, Limit(-(2**31), 2**31 - 1)]


@dataclass(frozen=True)
class Labels:
    """Classes of a data set: class id k is the mask value `values[k]`; subclasses mean other kinds of masks.

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

    Raises:
        UserError: no mask can have these values, or some are equal.
    """

    kind: ClassVar[str] = "classes"
    defaults: ClassVar[dict[str, Any]] = {}
    """Settings of the loss that are None by default, and not for these labels."""
    layer_opacity: ClassVar[int] = 50
    """Percent with which a page lays `layer` over a photo."""
    needs: ClassVar[tuple[str, str, str] | None] = None
    """Library without which nothing is predicted, its extra, and what needs it, for `check_installed`."""
    blank: ClassVar[int] = IGNORE_ID
    """Pixel of a predicted mask where the image has no data."""

    values: tuple[_Code, ...]  # grey values, palette indices, or colours as 0xRRGGBB if `rgb`
    rgb: bool = False  # masks are colour images
    ignore: _Int32 | None = None  # mask value of pixels to ignore
    palette: tuple[Colour, ...] | None = None  # colours of the indices in palette masks
    names: tuple[str, ...] | None = None  # of the classes, if the user gave them
    threshold: _Code | None = None  # values above it are the larger of two `values`, the rest not

    def __post_init__(self) -> None:
        """Refuse classes that no mask can have, or that can't be told from each other."""
        values, largest = self.values, 0xFFFFFF if self.rgb else 65535
        outside = [value for value in values if not 0 <= value <= largest]
        if outside:
            raise UserError(f"values: {outside[0]}; expected 0 or more and at most {largest}")
        distinct = {*values} - ({self.ignore} if self.threshold is None else set())
        if len(values) > IGNORE_ID or len(distinct) < len(values):
            raise UserError(
                f"values: {shorten(values)}; expected at most {IGNORE_ID}, all different and none "
                f"that is ignored ({self.ignore})"
            )
        if self.names is not None and not len(values) == len(self.names) == len(set(self.names)):
            raise UserError(
                f"names {shorten([*self.names])}: expected {len(values)}, one for each class, all different"
            )
        if self.threshold is not None and len(values) != 2:
            raise UserError(f"threshold: {self.threshold}; expected for two classes only")

    @property
    def num_classes(self) -> int:
        """Number of classes, background included."""
        return len(self.values)

    @property
    def num_mask_classes(self) -> int:
        """Number of classes that masks contain: the first ones."""
        return self.num_classes

    @property
    def score_names(self) -> Sequence[str]:
        """Names of the entries that `score` returns."""
        return ()

    @property
    def mask_suffix(self) -> str:
        """Suffix of the smallest kind of file that can hold a mask."""
        return "png"

    @property
    def named_values(self) -> dict[int, str]:
        """Name of each mask value that is a class."""
        return dict(zip(self.values, self.class_names, strict=True))

    @property
    def drawn(self) -> Sequence[int]:
        """Class ids that pictures colour, if there are more than one and a background."""
        return range(self.num_classes)

    @property
    def foreground(self) -> Sequence[int]:
        """Class ids that annotation files list."""
        if self.num_classes == 2:
            return [1]
        return [k for k, value in enumerate(self.values) if value > 0]

    @cached_property
    def class_names(self) -> list[str]:
        """Each class as tables, plots and messages call it: its name, else its value."""
        return list(self.names) if self.names else [self.show(value) for value in self.values]

    @cached_property
    def colours(self) -> list[Colour]:
        """A colour per class to draw with: the masks' own, else PASCAL VOC's."""
        if self.rgb:
            return [unpack_colour(value) for value in self.values]
        known = dict(enumerate(self.palette or ()))
        own = [known.get(value, (0, 0, 0)) for value in self.values]
        if len(set(own)) == self.num_classes:
            return own
        if self.num_classes == 2:
            return [(0, 0, 0), (255, 255, 255)]
        return [voc_colour(k) for k in range(self.num_classes)]

    @cached_property
    def nodata(self) -> int:
        """Mask value of pixels without data: the ignored one, or else one of no class."""
        largest = 0xFFFFFF if self.rgb else 255 if max(self.values) <= 255 else 65535
        if self.ignore is not None and 0 <= self.ignore <= largest:
            return self.ignore
        return next(value for value in range(largest, -1, -1) if value not in self.values)

    @property
    def nodata_tag(self) -> int | None:
        """Value that a GeoTIFF's header names as no data; None if no value is."""
        return None if self.rgb else self.nodata

    def to_ids(self, codes: Codes, path: Path) -> Ids:
        """Return the class ids (H, W) uint8 of mask values (H, W), 255 where ignored; errors name `path`.

        Raises:
            UserError: a value belongs to no class.
        """
        ids, known = self._table.look_up(codes)
        if known is not None:
            unknown = codes[~known]
            raise UserError(
                f"{path}: unknown mask value {self.show(int(unknown[0]))} ({unknown.size} pixels); "
                f"expected {', '.join(map(self.show, self.values))}. Fix the mask or retrain"
            )
        return ids

    def ids_of_values(self, values: Codes, path: Path) -> Ids:
        """Return the class ids that a mask's values alone say, without their places."""
        return self.to_ids(values, path)

    def find_truth(self, ids: Ids, read: Callable[[], Codes]) -> Mask:
        """Return the mask (H, W) that a predicted one is scored by, of class ids; `read` has its values."""
        return ids

    def from_file(self, codes: Codes, path: Path) -> Mask:
        """Return the mask of an earlier prediction, from the values in its file; some may be `nodata`."""
        return replace(self, ignore=self.nodata).to_ids(codes, path)

    @cached_property
    def _table(self) -> ValueTable:
        return ValueTable(self.values, self.rgb, self.ignore, self.threshold)

    def to_image(self, ids: Mask) -> Image.Image:
        """Return class ids (H, W) as a mask with the training masks' own values, `nodata` for no class.

        Colour masks give a colour image. Values that had a palette, or all look black, give a palette image.
        """
        image = Image.fromarray(self.to_values(ids))
        if image.mode == "L" and (max(self.values) < 128 or self.palette):
            flat = [0] * 768
            for value, colour in zip(self.values, self.colours, strict=True):
                flat[3 * value : 3 * value + 3] = colour
            image.putpalette(flat)
        return image

    def to_values(self, ids: Mask) -> Mask:
        """Return the pixels of `to_image`, (H, W) or (H, W, 3)."""
        table = np.full(256, self.nodata, np.int32)
        table[: self.num_classes] = self.values
        if self.rgb:
            return np.stack(unpack_colour(table[ids]), axis=-1).astype(np.uint8)
        if max(self.values) > 255:
            return table[ids].astype(np.uint16)
        if self.values[0] == 0 and ids.max(initial=0) < 2:  # of two classes: many times as fast
            return ids * np.uint8(self.values[1])
        import cv2

        return np.asarray(cv2.LUT(ids, table.astype(np.uint8)))

    def decode(self, bands: Iterable[Band], size: Size) -> tuple[Mask, Shares | None]:
        """Return the mask (H, W) of a prediction in bands, and each pixel's probability of an object or None."""
        ids = allocate(size, np.uint8)
        for band in bands:
            ids[band.rows] = band.ids
        return ids, None

    def ids_of(self, mask: Mask) -> Ids:
        """Return the class ids (H, W) in a predicted mask."""
        return mask

    def renumber(self, mask: Mask) -> Mask:
        """Return a mask in which pixels became `blank`, as it would have been predicted."""
        return mask

    def layer(self, mask: Mask) -> Ids:
        """Return the class ids (H, W) to draw of a mask."""
        return mask

    def regions(self, mask: Mask) -> Regions:
        """Return where objects are: connected pixels of a class; of two classes, the first has none."""
        if self.num_classes == 2:
            return Regions(mask, mask == 1, are_numbers=False)
        return Regions(mask, mask < self.num_classes, are_numbers=False)

    def score(self, mask: Mask, truth: Mask) -> list[Any]:
        """Count what `mask` shares with `truth` besides pixels of classes; counts add up over images."""
        return []

    def average(self, others: Sequence[Labels]) -> Labels:
        """Return the labels of an ensemble, from its networks' labels."""
        return self

    def describe(self) -> str:
        """Return a line with the classes and their mask values."""
        names = [self.show(value) for value in self.values]
        if self.names:
            names = [f"{n} ({v})" for n, v in zip(self.names, names, strict=True)]
        threshold = f", thresholded at {self.threshold}" if self.threshold is not None else ""
        ignored = f"; {self.show(self.ignore)} is ignored" if self.ignore is not None else ""
        classes = f"{self.num_classes}, mask values {join_some(names, _SHOWN)}"
        return f"classes: {classes}{threshold}{ignored}"

    def tuner(self, data: Any, world: Any, *, resize_masks: bool) -> Any:
        """Return what chooses how a run's predictions are decoded, on its PreparedData `data`, if anything."""
        return None

    def describe_tuning(self) -> list[str]:
        """Return a line about what `tuner` has chosen, if there is anything to choose."""
        return []

    def doubt(self, values: Sequence[int], shown: str) -> list[str]:
        """Return a warning if the values of all masks look like another kind of labels."""
        return []

    def summarise(self, mask: Mask) -> str:
        """Return words about a predicted mask, to stand before its classes' shares."""
        return ""

    def show(self, value: int) -> str:
        """Return a mask value as text: 255, or #ff0000."""
        return f"#{value:06x}" if self.rgb else str(value)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self) | {
            "values": list(self.values),
            "palette": [list(colour) for colour in self.palette] if self.palette else None,
            "names": list(self.names) if self.names else None,
        }

    @classmethod
    def from_dict(cls, plain: Any) -> Labels:
        """Return the labels that `to_dict` gave, of their kind, checked."""
        kind = "classes"
        if isinstance(plain, Mapping) and "separation" in plain:
            if plain["separation"] is None:  # as version 0.1 writes classes
                plain = {name: value for name, value in plain.items() if name != "separation"}
            else:
                kind = "objects"
        return cast(Labels, from_plain(find("labels", kind), plain))
