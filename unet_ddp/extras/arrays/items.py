"""Items of a data set that is no folder: named images and masks as arrays, read in each process by itself."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Lock, RLock
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from unet_ddp.data.readers.masked import refuse_masked
from unet_ddp.data.readers.pictures import decode_picture, decode_picture_mask, has_alpha
from unet_ddp.errors import UserError, words_of
from unet_ddp.plugins import find

_MASKS = ("mask", "label", "annotation", "segmentation")  # keys of an item that is a dictionary
_ARRAYS = ("1", "F")  # modes of Pillow images that NumPy has as a file of them is read
_FORMS = "give (name, image, mask), (image, mask), a dictionary with image and mask, or masks beside images"


class Item(NamedTuple):
    """A named image and its mask."""

    name: str
    image: NDArray[Any]
    mask: NDArray[Any]
    has_alpha: bool = False
    """True for a Pillow image whose last band says how transparent pixels are."""

    @property
    def suffix(self) -> str:
        """Suffix of a file of the image."""
        return ".png" if self.has_alpha else ".npy"

    def write_image(self, file: IO[bytes]) -> None:
        """Write the image: a NPY file has no alpha."""
        if self.has_alpha:
            Image.fromarray(self.image).save(file, "PNG", compress_level=1)
        else:
            np.save(file, self.image)


@dataclass(frozen=True)
class _Opened:
    """A sequence as one process has it."""

    process: int
    items: Any
    thread: ThreadPoolExecutor | None
    """The one that uses what a function has made; None for an object."""
    lock: RLock

    def call(self, question: Callable[[Any], Any]) -> Any:
        if self.thread is not None:
            return self.thread.submit(question, self.items).result()
        with self.lock:
            return question(self.items)


class Column:
    """A sequence: an object, or the path of one in a module, or of a function that returns it.

    A function is called once in each process, and one thread uses its result, which no fork inherits: so it may be
    an open database. An object is inherited by a fork, and is used by one thread at a time.
    """

    def __init__(self, name: str, items: Any = None) -> None:
        self.name, self._given = name, items
        self._opened: _Opened | None = None
        self._lock = Lock()

    def __len__(self) -> int:
        return int(self.call(len))

    def __reduce__(self) -> tuple[Any, ...]:
        return Column, (self.name, self._given)

    def read(self, row: int) -> Any:
        """Return an item, or raise a UserError that names it."""
        return self.call(lambda items: items[row], f"[{row}]")

    def call(self, question: Callable[[Any], Any], which: str = "") -> Any:
        """Return what the sequence answers; its exceptions become a line."""
        with self._lock:
            if self._opened is None or self._opened.process != os.getpid():
                self._opened = self._open()
            opened = self._opened
        try:
            return opened.call(question)
        except UserError:
            raise
        except Exception as error:  # of code that is not ours
            raise UserError(f"{self.name}{which}: {_explain(error, self.name)}") from error

    def close(self) -> None:
        """Leave what a function has made to the garbage collector, before a fork; the next use calls it again."""
        opened = self._opened
        if opened is not None and opened.thread is not None and opened.process == os.getpid():
            opened.thread.shutdown()
            self._opened = None

    def _open(self) -> _Opened:
        thread = None
        if (
            self._opened is not None and self._opened.thread is None
        ):  # of the process that has forked this one
            items = self._opened.items
        else:
            items = find("pairs", self.name) if self._given is None else self._given
        if isinstance(items, type) or (callable(items) and not hasattr(items, "__len__")):
            thread = ThreadPoolExecutor(1)
            try:
                items = thread.submit(items).result()
            except Exception as error:
                raise UserError(f"{self.name}(): {_explain(error, self.name)}") from error
        if hasattr(items, "iloc") and items.ndim == 1:
            items = [*items]  # a column of pandas, whose rows have numbers of their own
        if isinstance(items, Mapping) or hasattr(items, "iloc"):
            raise UserError(
                f"{self.name}: {_describe(items, is_array=False)} is no sequence; give a list of its values, or "
                "(name, image, mask) of each"
            )
        if not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
            raise UserError(
                f"{self.name}: {_describe(items)}; give a sequence, or an object with __len__ and __getitem__"
            )
        return _Opened(os.getpid(), items, thread, RLock())


def _explain(error: Exception, name: str) -> str:
    """Return an exception of a user's code in a line, with the place in its module where it was raised."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__
    ]
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    own = [frame for frame in frames if frame.filename == file] or frames
    said = f"{type(error).__name__}: {words_of(error)}"
    return f"{said} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else said


@dataclass(frozen=True)
class Items:
    """Named images and masks: of one sequence, or of two."""

    images: Column
    masks: Column | None = None

    @classmethod
    def of_modules(cls, images: str, masks: str | None) -> Items:
        """Return the items of objects that are in modules, or what functions there return."""
        return cls(Column(images), None if masks is None else Column(masks))

    @property
    def key(self) -> str:
        """The first part of the paths of these pairs, which no folder has."""
        names = (column.name for column in (self.images, self.masks) if column is not None)
        key = "+".join(names)
        return key if ":" in key else f"<{key}>"

    def close(self) -> None:
        """Close what functions have made; see `Column.close`."""
        for column in (self.images, self.masks):
            if column is not None:
                column.close()

    def __len__(self) -> int:
        count = len(self.images)
        if self.masks is not None and len(self.masks) != count:
            raise UserError(
                f"{self.images.name} has {count} items, {self.masks.name} {len(self.masks)}; give a mask for each image"
            )
        if not count:
            raise UserError(f"{self.images.name}: is empty; give images and masks")
        return count

    def read(self, row: int, count: int) -> Item:
        """Return an item of `count`, its arrays as an NPY file may have them.

        Raises:
            UserError: the sequence fails, or has anything else there.
        """
        name: Any = f"{row:0{len(str(count - 1))}d}"
        found, where = self.images.read(row), f"{self.images.name}[{row}]"
        if self.masks is not None:
            image, mask, other = found, self.masks.read(row), f"{self.masks.name}[{row}]"
        else:
            name, image, mask = _split(found, name, where)
            where, other = f"{where}, image", f"{where}, mask"
        is_clear = isinstance(image, Image.Image) and has_alpha(image)
        name = _as_name(name, where)
        return Item(name, _as_image(image, where), _as_mask(mask, other), is_clear)


def _split(found: Any, name: str, where: str) -> tuple[Any, Any, Any]:
    """Return name, image and mask of an item."""
    if isinstance(found, Mapping):
        mask = next((found[key] for key in _MASKS if key in found), None)
        if "image" not in found or mask is None:
            raise UserError(f"{where} has {', '.join(map(repr, found))}; {_FORMS}")
        return found.get("name", name), found["image"], mask
    if isinstance(found, (tuple, list)) and len(found) in (2, 3):
        return (name, *found) if len(found) == 2 else tuple(found)
    raise UserError(f"{where} is {_describe(found)}; {_FORMS}")


def _as_name(name: Any, where: str) -> str:
    if getattr(name, "shape", None) == ():  # a number of NumPy, pandas or torch
        name = name.item()
    text = str(name)
    path = PurePosixPath(text)
    is_plain = isinstance(name, (str, int)) and text == str(path) and "\0" not in text
    if not is_plain or path.is_absolute() or any(part.startswith(".") for part in path.parts):
        raise UserError(
            f"{where}: {_describe(name)} is no name; use text, as a file's name without suffix"
        )
    return text


def _as_image(value: Any, where: str) -> NDArray[Any]:
    if isinstance(value, Image.Image) and value.mode not in _ARRAYS:
        pixels = decode_picture(value, None, where)
        value = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    refuse_masked(value, f"{where} is", "and name the value by nodata=")
    return _as_array(value, where)


def _as_mask(value: Any, where: str) -> NDArray[Any]:
    """Return the values of a mask; whole numbers of other sizes, as torch's, as int32."""
    if isinstance(value, Image.Image) and value.mode not in _ARRAYS:
        value = decode_picture_mask(value, where)
    refuse_masked(value, f"{where} is", "and name the value by ignore_index=")
    mask = _as_array(value, where)
    if mask.dtype.kind in "iu" and mask.dtype.itemsize > 2:
        if mask.min() < -(2**31) or mask.max() >= 2**31:
            raise UserError(
                f"{where}: values from {mask.min()} to {mask.max()}; use numbers of at most 2147483647"
            )
        return mask.astype(np.int32)
    return mask


def _as_array(value: Any, where: str) -> NDArray[Any]:
    if value is None or isinstance(value, (str, bytes, os.PathLike)):
        advice = "give an array (H, W) or (H, W, C)"
        if value is not None:
            advice += "; of files, give the folder, or a CSV file by list="
        raise UserError(f"{where} is {_describe(value)}; {advice}")
    if isinstance(value, Image.Image):
        value = ImageOps.exif_transpose(value)
    try:
        array = np.asarray(value)
    except Exception as error:  # of a ragged list, or a tensor on a GPU
        what = f"is {_describe(value)}"
        if not isinstance(value, (list, tuple)):
            what += f", {type(error).__name__}: {words_of(error)}"
        raise UserError(f"{where} {what}; give an array (H, W) or (H, W, C)") from None
    if array.dtype.kind not in "biuf":
        raise UserError(f"{where}: an array of {array.dtype}; give one of numbers, e.g. uint8")
    if array.ndim not in (2, 3) or not array.size:
        raise UserError(f"{where}: an array {array.shape}; give one (H, W) or (H, W, C)")
    return array


def _describe(value: Any, *, is_array: bool = True) -> str:
    if value is None:
        return "None"
    shape = getattr(value, "shape", None) if is_array else None
    if isinstance(shape, tuple):
        return f"an array {tuple(shape)}"
    return f"{value!r:.40}" if isinstance(value, (str, int, float)) else f"a {type(value).__name__}"
