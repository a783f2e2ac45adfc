"""Mask values, as files contain them, to class ids, as the network counts them, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unet_ddp.data.borders import BORDER, CLASS_NAMES, CLASS_STEP, mark_borders, number_densely
from unet_ddp.data.formats.header import Codes
from unet_ddp.errors import Limit, UserError, from_plain, shorten

IGNORE_ID = 255
"""Class id of pixels that are left out of the loss and the scores."""

_Byte = Annotated[int, Limit(0, 255)]
_Code = Annotated[int, Limit(0, 0xFFFFFF)]
_Share = Annotated[float, Limit(above=0, below=1)]
_Int32 = Annotated[int, Limit(-(2**31), 2**31 - 1)]
Colour = tuple[_Byte, _Byte, _Byte]


@dataclass(frozen=True)
class Labels:
    """Classes of a data set: class id k is the mask value ``values[k]``."""

    values: tuple[_Code, ...]  # grey values, palette indices, or colours as 0xRRGGBB if `rgb`
    rgb: bool = False  # masks are colour images
    ignore: _Int32 | None = None  # mask value of pixels to ignore
    palette: tuple[Colour, ...] | None = None  # colours of the indices in palette masks
    names: tuple[str, ...] | None = None  # of the classes, if the user gave them
    threshold: _Code | None = None  # values above it are the larger of two `values`, the rest not
    separation: tuple[_Share, _Share] | None = None
    """None for masks of classes. If each object has a number in its mask, and the classes are
    background, one or more of objects, and border: least probability of an object's body where it is
    seeded, and of body or border as far as it extends."""

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
        names = self.names or ()
        has_ends = len(names) > 2 and (names[0], names[-1]) == (CLASS_NAMES[0], CLASS_NAMES[-1])
        if self.separation is not None and not has_ends:
            found = shorten([*names])
            raise UserError(f"names {found}: expected background, classes of objects, border")

    @property
    def has_objects(self) -> bool:
        """True if each object in a mask has a number."""
        return self.separation is not None

    @property
    def bodies(self) -> range:
        """Class ids of objects; none for masks of classes."""
        return range(1, self.num_classes - 1 if self.has_objects else 1)

    @property
    def has_object_classes(self) -> bool:
        """True if objects have several classes, which values in masks contain; see CLASS_STEP."""
        return len(self.bodies) > 1

    @property
    def num_classes(self) -> int:
        """Number of classes, background included."""
        return len(self.values)

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
        return [_voc_colour(k) for k in range(self.num_classes)]

    @cached_property
    def nodata(self) -> int:
        """Mask value of pixels without data: the ignored one, or else one of no class."""
        if self.has_objects:
            return -1 if self.ignore is None else self.ignore
        largest = 0xFFFFFF if self.rgb else 255 if max(self.values) <= 255 else 65535
        if self.ignore is not None and 0 <= self.ignore <= largest:
            return self.ignore
        return next(value for value in range(largest, -1, -1) if value not in self.values)

    def to_ids(self, codes: Codes, path: Path) -> NDArray[np.uint8]:
        """Return the class ids (H, W) of mask values (H, W), IGNORE_ID where ignored.

        Raises:
            UserError: a value that belongs to no class, in the mask `path`.
        """
        if self.has_objects:
            return self._from_numbers(codes, path)
        if codes.dtype == np.uint8 and codes.size:  # by table: a tenth of the time
            table, is_known = self._byte_table
            if is_known[: int(codes.max()) + 1].all() or is_known.take(codes).all():
                ids = np.frombuffer(bytearray(codes).translate(table), np.uint8)
                return ids.reshape(codes.shape)
        ids, known = self._look_up(codes)
        if not known.all():
            unknown = codes[~known]
            raise UserError(
                f"{path}: unknown mask value {self.show(int(unknown[0]))} ({unknown.size} pixels); "
                f"expected {', '.join(map(self.show, self.values))}. Fix the mask or retrain"
            )
        return ids

    def ids_of_values(self, values: Codes, path: Path) -> NDArray[np.uint8]:
        """Return the class ids of a mask's values as `to_ids` does, but for objects' borders."""
        if self.has_objects:
            self.check_numbers(values, lambda _: path)
            classes, _ = self.split_values(values)
            return np.where(self._is_ignored(values), IGNORE_ID, classes).astype(np.uint8)
        return self.to_ids(values, path)

    def split_values(self, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the class ids and the numbers of objects in a mask's values, both 0 for none."""
        if self.has_object_classes:
            return np.divmod(values.astype(np.int32, copy=False), CLASS_STEP)
        return (values > 0).view(np.uint8), values

    def join_values(self, classes: NDArray[Any], numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return a mask's values from what `split_values` returned."""
        if self.has_object_classes and numbers.max(initial=0) >= CLASS_STEP:
            raise UserError(f"{numbers.max()} objects; at most {CLASS_STEP - 1} can have classes")
        return classes * np.int32(CLASS_STEP * self.has_object_classes) + numbers

    def check_numbers(self, codes: Codes, find_path: Callable[[int], object]) -> None:
        """Raise a UserError for a value that no object can have, in the mask that `find_path` returns."""
        classes, numbers = self.split_values(codes)
        is_known = (classes > 0) & (classes <= len(self.bodies)) & (numbers > 0) | (codes == 0)
        wrong = codes[~(is_known | self._is_ignored(codes))]
        if wrong.size:
            expected = "numbers of objects, 1 or more"
            if self.has_object_classes:
                names = ", ".join(self.class_names[1:-1])[:99]
                expected = f"class * {CLASS_STEP} + number, both from 1 on, of {names}"
            raise UserError(f"{find_path(int(wrong[0]))}: value {wrong[0]}; expected {expected}")

    def find_numbers(self, codes: Codes) -> NDArray[np.int32]:
        """Return the objects' numbers, or values, (H, W) in a mask, 0 where it is to be ignored."""
        kept = np.where(self._is_ignored(codes), 0, codes).astype(np.int32, copy=False)
        return kept if self.has_object_classes else number_densely(kept)

    def _is_ignored(self, codes: Codes) -> NDArray[np.bool_]:
        ignored = np.zeros(codes.shape, bool)
        if self.ignore is not None:  # with which NumPy would compare in Python, a pixel at a time
            ignored |= codes == self.ignore
        return ignored

    def _from_numbers(self, codes: Codes, path: Path) -> NDArray[np.uint8]:
        self.check_numbers(codes, lambda _: path)
        values = self.find_numbers(codes)
        ids = mark_borders(values)
        if self.has_object_classes:
            classes, _ = self.split_values(values)
            ids = np.where(ids == BORDER, self.bodies.stop, classes).astype(np.uint8)
        if self.ignore is not None:
            ids[codes == self.ignore] = IGNORE_ID
        return ids

    @cached_property
    def _byte_table(self) -> tuple[bytes, NDArray[np.bool_]]:
        """Class id of every value of 8 bits, and whether it has one."""
        ids, known = self._look_up(np.arange(256, dtype=np.int32))
        return ids.tobytes(), known

    def _look_up(self, codes: Codes) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return the class ids of mask values, and which of the values have one."""
        if self.threshold is not None:
            return self._split(codes, self.threshold), np.ones(codes.shape, bool)
        pairs = [(value, k) for k, value in enumerate(self.values)]
        if self.ignore is not None:
            pairs.append((self.ignore, IGNORE_ID))
        values, ids = (np.array(column, np.int32) for column in zip(*sorted(pairs), strict=True))
        places = np.searchsorted(values, codes).clip(max=len(values) - 1)
        return ids.astype(np.uint8)[places], values[places] == codes

    def _split(self, codes: Codes, threshold: int) -> NDArray[np.uint8]:
        """Return class ids of soft or numbered masks: brighter is the class of the larger value."""
        brightness = np.max(unpack_colour(codes), axis=0) if self.rgb else codes
        bright = int(self.values[1] > self.values[0])
        ids = np.where(brightness > threshold, bright, 1 - bright).astype(np.uint8)
        if self.ignore is not None:  # on either side of the threshold
            ids[codes == self.ignore] = IGNORE_ID
        return ids

    def to_image(self, ids: NDArray[np.uint8]) -> Image.Image:
        """Return class ids (H, W) as a mask with the training masks' own values, `nodata` for no class.

        Numbers of objects, (H, W) of 16 or 32 bit, stay as they are.

        Colour masks give a colour image. Values that would all look black, or that came with a
        palette, give a palette image whose indices are the values.
        """
        if self.has_objects:
            return Image.fromarray(ids)
        table = np.full(256, self.nodata, np.int32)
        table[: self.num_classes] = self.values
        codes = table[ids]  # (H, W)
        if self.rgb:
            return Image.fromarray(np.stack(unpack_colour(codes), axis=-1).astype(np.uint8))
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
        """Return a mask value as text: 255, or #ff0000."""
        return f"#{value:06x}" if self.rgb else str(value)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self) | {
            "values": list(self.values),
            "palette": [list(colour) for colour in self.palette] if self.palette else None,
            "names": list(self.names) if self.names else None,
            "separation": list(self.separation) if self.separation else None,
        }

    @classmethod
    def from_dict(cls, plain: Any) -> Labels:
        """Return the labels that `to_dict` gave, checked."""
        return from_plain(cls, plain)


def object_labels(names: tuple[str, ...], ignore: int | None = None) -> Labels:
    """Return background, the classes of objects that have numbers, and border.

    Raises:
        UserError: too many names, or one that is taken.
    """
    if len(names) > IGNORE_ID - 2 or len({*names, *CLASS_NAMES[::2]}) < len(names) + 2:
        raise UserError(
            f"classes {', '.join(names)[:99]}: objects can have at most {IGNORE_ID - 2}, all different "
            "and none called background or border; rename them"
        )
    names = (CLASS_NAMES[0], *names, CLASS_NAMES[-1])
    return Labels(tuple(range(len(names))), False, ignore, names=names, separation=(0.5, 0.5))


def unpack_colour(code: Any) -> tuple[Any, Any, Any]:
    """Return (red, green, blue) of 0xRRGGBB, a number or an array of them."""
    return code >> 16 & 0xFF, code >> 8 & 0xFF, code & 0xFF


def _voc_colour(k: int) -> Colour:
    """Return the k-th colour of PASCAL VOC's colour map: k's bits spread over the channels."""
    red, green, blue = (
        sum((k >> 3 * level + channel & 1) << 7 - level for level in range(3))
        for channel in range(3)
    )
    return red, green, blue
