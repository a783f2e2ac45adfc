"""Mask values, as files hold them, and class ids, as the network counts them; and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unet_ddp.data.formats.header import Codes
from unet_ddp.errors import UserError

IGNORE_ID = 255
"""Class id of pixels that count neither in the loss nor in the scores."""

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Labels:
    """The classes of a data set: class id k is the mask value ``values[k]``."""

    values: tuple[int, ...]
    """Grey values, palette indices, or colours as 0xRRGGBB where `rgb`."""
    rgb: bool = False
    """Whether masks are colour images."""
    ignore: int | None = None
    """The mask value of pixels to ignore."""
    palette: tuple[Colour, ...] | None = None
    """Colours of the indices in palette masks."""
    names: tuple[str, ...] | None = None
    """A name for each class, where somebody gave them."""
    threshold: int | None = None
    """Grey values above it are the larger of two `values`, the rest the smaller."""

    @property
    def num_classes(self) -> int:
        return len(self.values)

    @cached_property
    def class_names(self) -> list[str]:
        """What each class is called in tables, plots and messages: its name, else its value."""
        return list(self.names) if self.names else [self.show(value) for value in self.values]

    @cached_property
    def colours(self) -> list[Colour]:
        """A colour per class to draw with: the masks' own, or told apart easily."""
        if self.rgb:
            return [_unpack(value) for value in self.values]
        if self.palette and len({self._entry(value) for value in self.values}) == self.num_classes:
            return [self._entry(value) for value in self.values]
        if self.num_classes == 2:
            return [(0, 0, 0), (255, 255, 255)]
        return [distinct_colour(k) for k in range(self.num_classes)]

    def _entry(self, value: int) -> Colour:
        palette = self.palette or ()
        return palette[value] if value < len(palette) else (0, 0, 0)

    def to_ids(self, codes: Codes, path: Path) -> NDArray[np.uint8]:
        """Class ids (H, W) of mask values (H, W), IGNORE_ID where they are to be ignored.

        Raises:
            UserError: a value that is none of the classes, with the file's name.
        """
        if codes.dtype == np.uint8 and codes.size:  # looked up in a table: a tenth of the time
            table, known = self._bytes
            if not known[: int(codes.max()) + 1].all():
                self._refuse(codes, known.take(codes), path)
            return np.frombuffer(bytearray(codes).translate(table), np.uint8).reshape(codes.shape)
        ids, known = self._ids_of(codes)
        if not known.all():
            self._refuse(codes, known, path)
        return ids

    def _refuse(self, codes: Codes, known: NDArray[np.bool_], path: Path) -> None:
        """Raises UserError where a value of the mask is none of the classes."""
        strange = ~known
        if strange.any():
            value = int(codes[strange][0])
            raise UserError(
                f"{path}: mask value {self.show(value)} in {int(strange.sum())} pixel(s) is none of "
                f"{', '.join(map(self.show, self.values))}; mend the mask, or train anew if the "
                "masks have changed"
            )

    @cached_property
    def _bytes(self) -> tuple[bytes, NDArray[np.bool_]]:
        """Of every value that 8 bits hold, the class id, and whether it has one."""
        ids, known = self._ids_of(np.arange(256, dtype=np.int32))
        return ids.tobytes(), known

    def _ids_of(self, codes: Codes) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Class ids of mask values, and which of the values have one."""
        if self.threshold is not None:
            return self._split(codes, self.threshold), np.ones(codes.shape, bool)
        values, ids = self._table
        places = np.searchsorted(values, codes).clip(max=len(values) - 1)
        found: NDArray[np.uint8] = ids[places]
        return found, values[places] == codes

    def _split(self, codes: Codes, threshold: int) -> NDArray[np.uint8]:
        """Class ids of soft or numbered masks: what is brighter is the class of the larger value."""
        brightness = codes
        if self.rgb:
            brightness = np.maximum.reduce([codes >> shift & 0xFF for shift in (16, 8, 0)])
        bright = int(self.values[1] > self.values[0])
        ids = np.where(brightness > threshold, bright, 1 - bright).astype(np.uint8)
        if self.ignore is not None:  # whatever side it is on
            ids[codes == self.ignore] = IGNORE_ID
        return ids

    @cached_property
    def _table(self) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """All values, sorted, and the class id of each."""
        pairs = [(value, k) for k, value in enumerate(self.values)]
        if self.ignore is not None:
            pairs.append((self.ignore, IGNORE_ID))
        pairs.sort()
        return (
            np.array([value for value, _ in pairs], np.int32),
            np.array([k for _, k in pairs], np.uint8),
        )

    def to_image(self, ids: NDArray[np.uint8]) -> Image.Image:
        """Class ids (H, W) as a mask with the training masks' own values, visible to the eye.

        Colour masks give a colour image. Values that would all look black, or that came with a
        palette, give a palette image: its indices are the values.
        """
        codes = np.array(self.values, np.int32)[ids]
        if self.rgb:
            planes = [codes >> shift & 0xFF for shift in (16, 8, 0)]
            return Image.fromarray(np.stack(planes, axis=-1).astype(np.uint8))
        if max(self.values) > 255:
            return Image.fromarray(codes.astype(np.uint16))
        image = Image.fromarray(codes.astype(np.uint8))
        if max(self.values) < 128 or self.palette:
            flat = [0] * 768
            for value, colour in zip(self.values, self.colours, strict=True):
                flat[3 * value : 3 * value + 3] = colour
            image.putpalette(flat)
        return image

    def show(self, value: int) -> str:
        """A mask value as people write it: 255, or #ff0000."""
        return f"#{value:06x}" if self.rgb else str(value)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {
            "values": list(self.values),
            "rgb": self.rgb,
            "ignore": self.ignore,
            "palette": [list(colour) for colour in self.palette] if self.palette else None,
            "names": list(self.names) if self.names else None,
            "threshold": self.threshold,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Labels:
        """The labels that `to_dict` gave."""
        palette, names = plain.get("palette"), plain.get("names")
        return cls(
            tuple(int(value) for value in plain["values"]),
            bool(plain["rgb"]),
            plain["ignore"],
            tuple((int(r), int(g), int(b)) for r, g, b in palette) if palette else None,
            tuple(map(str, names)) if names else None,
            plain.get("threshold"),
        )


def distinct_colour(k: int) -> Colour:
    """The k-th colour of PASCAL VOC's colour map: the bits of k spread over the channels."""
    colour = [0, 0, 0]
    for shift in range(7, -1, -1):
        for channel in range(3):
            colour[channel] |= (k >> channel & 1) << shift
        k >>= 3
    return (colour[0], colour[1], colour[2])


def _unpack(code: int) -> Colour:
    return (code >> 16 & 0xFF, code >> 8 & 0xFF, code & 0xFF)
