"""The values in masks that are classes: their names, colours, and pictures of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unet_ddp.data.masks import (
    IGNORE_ID,
    Colour,
    Flags,
    Ids,
    Mask,
    list_colours,
    pack_colour,
    unpack_colour,
    voc_colour,
)
from unet_ddp.errors import INT32, Limit, UserError, count_of, join_some, shorten

_Code = Annotated[int, Limit(0, 0xFFFFFF)]
_Int32 = Annotated[int, INT32]
_Threshold = Annotated[int, Limit(at_least=0)]
_UNKNOWN = 4  # values in a line


@dataclass(frozen=True)
class ClassValues:
    """Classes as values in masks; `Labels` says what the fields are."""

    values: tuple[_Code, ...]  # grey values, palette indices, or colours as 0xRRGGBB if `rgb`
    rgb: bool = False  # masks are colour images
    ignore: _Int32 | None = None  # mask value of pixels to ignore
    palette: tuple[Colour, ...] | None = None  # colours of the indices in palette masks
    names: tuple[str, ...] | None = None  # of the classes, if the user gave them
    threshold: _Threshold | None = None  # above it is the larger value
    rounded: bool = False  # other values count as the nearest

    def __post_init__(self) -> None:
        """Refuse classes that no mask can have, or that can't be told from each other."""
        values = self.values
        largest = 0xFFFFFF if self.rgb else 65535
        outside = [value for value in values if not 0 <= value <= largest]
        if outside:
            raise UserError(f"values: {outside[0]}; expected 0 or more and at most {largest}")
        distinct = set(values)
        if self.threshold is None:
            distinct -= {self.ignore}
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
    def named_values(self) -> dict[int, str]:
        """Name of each mask value that is a class."""
        return dict(zip(self.values, self.class_names, strict=True))

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
        """Mask value of pixels without data: the ignored one if it is of no class, or else another of none."""
        largest = 65535
        if self.rgb:
            largest = 0xFFFFFF
        elif max(self.values) <= 255:
            largest = 255
        is_free = self.ignore not in self.values  # with a threshold, a class may have it
        if self.ignore is not None and is_free and 0 <= self.ignore <= largest:
            return self.ignore
        return next(value for value in range(largest, -1, -1) if value not in self.values)

    def show(self, value: int) -> str:
        """Return a mask value as text: 255, or #ff0000."""
        return f"#{value:06x}" if self.rgb else str(value)

    def from_colours(self, colours: Mask, path: Path) -> Mask:
        """Return the mask values of colours, 0xRRGGBB: greys or palette indices if the classes are.

        Raises:
            UserError: a colour is none of them, or that of two; it names `path`.
        """
        if self.rgb or not self.named_values:  # any colour may be the number of an object
            return colours
        if not self.palette and (self.rounded or self.threshold is not None):
            channels = np.stack(unpack_colour(colours))
            grey = channels.mean(axis=0) if self.threshold is None else channels.max(axis=0)
            return np.asarray(grey.round(), np.uint8)
        known = list_colours(self.palette, 8)
        known_values = [*self.values, -1 if self.ignore is None else self.ignore]
        own = {value: int(known[value]) for value in known_values if 0 <= value < 256}
        _refuse_shared(own, colours, path)
        indices = np.array([*own, *range(256)])  # of a colour's indices the first
        order = indices[np.argsort(known[indices], kind="stable")]
        values = order[np.searchsorted(known[order], colours).clip(max=len(order) - 1)]
        unknown = colours[known[values] != colours]
        if unknown.size:
            expected = known[[value for value in self.values if value < 256]].tolist()
            raise UserError(
                f"{path}: unknown mask colour #{unknown[0]:06x}; expected "
                f"{join_some([f'#{colour:06x}' for colour in expected], 16)}. Fix the mask or retrain"
            )
        return np.asarray(values, np.uint8)

    def from_indices(self, indices: Mask, palette: Sequence[Colour]) -> Mask:
        """Return the mask values of indices of a palette: by colour if it has the classes' colours and no others.

        The palette alone decides, so it is the same for all masks of a set; black may fill it up.
        """
        if self.palette is None or self.rounded or not self.named_values or palette == self.palette:
            return indices
        shown = [*dict.fromkeys(palette)]
        own = list_colours(self.palette, 8)
        values = {int(own[value]): value for value in self.values if value < 256}
        found = [
            index if index == self.ignore else values.get(pack_colour(colour))
            for index, colour in enumerate(shown)
        ]
        are_filled = [*palette] == shown + [(0, 0, 0)] * (len(palette) - len(shown))
        if len(values) < self.num_classes or None in found or len(shown) < 2 or not are_filled:
            return indices
        return np.array([*found, *range(len(found), 256)], np.uint8)[indices]

    def search(self, codes: Mask) -> tuple[Ids, Flags]:
        """Return the class ids uint8 of mask values of any shape, 255 where ignored, and which have one."""
        if self.threshold is not None:
            return self._split(codes, self.threshold), np.ones(codes.shape, bool)
        if self.rounded:
            return self._round(codes), np.ones(codes.shape, bool)
        pairs = [(value, k) for k, value in enumerate(self.values)]
        if self.ignore is not None:
            pairs.append((self.ignore, IGNORE_ID))
        values, ids = np.array(sorted(pairs), np.int32).T
        places = np.searchsorted(values, codes).clip(max=len(values) - 1)
        is_known = values[places] == codes
        return ids.astype(np.uint8)[places], is_known

    def _split(self, codes: Mask, threshold: int) -> Ids:
        """Return class ids of soft or numbered masks: brighter is the class of the larger value."""
        brightness = np.max(unpack_colour(codes), axis=0) if self.rgb else codes
        ids = (brightness > threshold).astype(np.uint8)
        if self.values[1] < self.values[0]:
            ids = 1 - ids
        if self.ignore is not None:  # on either side of the threshold
            ids[codes == self.ignore] = IGNORE_ID
        return ids

    def _round(self, codes: Mask) -> Ids:
        """Return class ids of soft masks: that of the nearest value, of two as near the first."""
        found, places = np.unique(codes, return_inverse=True)
        points = self.to_points(found)
        ids = np.zeros(len(found), np.uint8)
        least = np.full(len(found), np.inf)
        named = dict(enumerate(self.values))
        if self.ignore is not None:
            named[IGNORE_ID] = self.ignore
        for k, centre in zip(named, self.to_points(np.array([*named.values()])), strict=True):
            distance = np.square(points - centre).sum(axis=1)
            ids[distance < least] = k
            least = np.minimum(least, distance)
        return ids[places].reshape(codes.shape)

    def to_points(self, values: Mask) -> NDArray[np.float64]:
        """Return the colours (N, 3) of mask values (N,); a grey value is its grey."""
        if self.palette:
            known = dict(enumerate(self.palette))
            colours = [known.get(value, (0, 0, 0)) for value in values.tolist()]
            return np.array(colours, np.float64).reshape(-1, 3)
        channels = unpack_colour(values) if self.rgb else (values,) * 3
        return np.stack(channels, axis=-1).astype(np.float64)

    def to_image(self, ids: Mask) -> Image.Image:
        """Return class ids (H, W) as a mask with the training masks' own values, `nodata` for no class.

        Colour masks give a colour image. Values that had a palette, or all look black, give a palette image.
        """
        image = Image.fromarray(self.to_values(np.asarray(ids)))
        if image.mode == "L" and (max(self.values) < 128 or self.palette):
            flat = [0] * 768
            for value, colour in zip(self.values, self.colours, strict=True):
                flat[3 * value : 3 * value + 3] = colour
            image.putpalette(flat)
        return image

    def to_values(self, ids: Mask) -> Mask:
        """Return the pixels of `to_image`, (H, W) or (H, W, 3)."""
        if ids.dtype != np.uint8:  # a user's own
            ids = np.where(ids == ids.astype(np.uint8), ids, IGNORE_ID).astype(np.uint8)
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


def _refuse_shared(known: Mapping[int, int], colours: Mask, path: Path) -> None:
    """Raise a UserError if one of the colours is that of two known values."""
    by_colour = {colour: value for value, colour in known.items()}
    for value, colour in known.items():
        other = by_colour[colour]
        if other != value and (colours == colour).any():
            raise UserError(
                f"{path}: #{colour:06x} is the colour of {value} and of {other}; save the mask with its palette"
            )


def refuse_unknown(labels: ClassValues, codes: Mask, is_known: Flags, path: Path) -> None:
    """Raise a UserError if some mask values (H, W), or (N,) without places, are no class; it names `path`."""
    if is_known.all():
        return
    unknown = codes[~is_known]
    values = [labels.show(value) for value in np.unique(unknown).tolist()]
    noun = "value" if len(values) == 1 else "values"
    count = f" ({count_of(unknown.size, 'pixel')})" if codes.ndim > 1 else ""
    raise UserError(
        f"{path}: unknown mask {noun} {join_some(values, _UNKNOWN)}{count}; expected "
        f"{', '.join(map(labels.show, labels.values))}. Fix the mask or retrain"
    )
