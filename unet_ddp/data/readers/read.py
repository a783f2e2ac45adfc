"""Image files of any format, opened once and read as arrays.

Images keep their type (uint8, uint16, int16, float32) and come with the data set's number of
channels; masks come as the values that the file holds. The orientation that a file notes is
applied. All formats are reduced here, by the same functions: what reads a file returns all its pixels. A property of the data set is never decided per image. A file that can't be read is a
UserError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.label_values import ClassValues
from unet_ddp.data.masks import list_colours
from unet_ddp.data.readers.base import (
    Codes,
    Header,
    ImageFormat,
    OpenFile,
    Pixels,
    Rows,
    Scene,
    as_user_error,
)
from unet_ddp.data.readers.own_reader import check_header, check_pixels, explaining
from unet_ddp.data.readers.pillow import PillowFile
from unet_ddp.data.readers.resize import fit_pixels, resize_nearest, scaled_size
from unet_ddp.errors import UnreachableError, UserError
from unet_ddp.files import as_path
from unet_ddp.plugins import find, is_built_in, is_own, list_names, read_sources

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # first bytes
_OF_PARTS = {
    "polygons",
    "window",
}  # readers of what a path names in a file; no file has their suffixes
READERS = 14
"""Version of the readers, and of what the scan keeps: caches of another one are not used."""

_own: dict[str, str] = {}
"""By suffix, the import paths that `use_own_readers` was given in this process."""
_found: dict[str, type[OpenFile]] = {}
"""By suffix, the readers that were found."""


def use_own_readers(names: Iterable[str]) -> None:
    """Have readers at import paths, and none that were named before, read the files of their suffixes.

    Only this process does so: every other one calls this function, too.

    Raises:
        UserError: one can't be imported, or is no reader.
    """
    _own.clear()
    _found.clear()
    for name in names:
        suffixes = getattr(find("readers", name), "suffixes", None)
        if not suffixes or not all(str(suffix).startswith(".") for suffix in suffixes):
            raise UserError(
                f"--reader {name}: has no suffixes, as ('.xyz',); see docs/own_parts.md"
            )
        _own.update(dict.fromkeys(map(str.lower, suffixes), name))


def own_readers() -> list[str]:
    """Return the import paths that `use_own_readers` was given."""
    return list(dict.fromkeys(_own.values()))


def can_read(suffix: str) -> bool:
    """Return whether there is a reader for files of a suffix in lower case."""
    if ":" in suffix:  # a file's name starts no code
        return False
    name = suffix.removeprefix(".")
    return suffix in _own or is_built_in("readers", name) or is_own("readers", name)


def list_suffixes() -> list[str]:
    """Return the suffixes of all readers of files, sorted."""
    names = {*list_names("readers")} - _OF_PARTS
    return sorted({*_own, *(f".{name}" for name in names)})


def find_reader(path: Path) -> type[OpenFile]:
    """Return the reader of a file by its suffix; of an unknown one, Pillow's, which looks into it."""
    suffix = path.suffix.lower()
    if suffix not in _found:
        _found[suffix] = find("readers", _name_reader(suffix))
    return _found[suffix]


def _find_real_reader(path: Path) -> type[OpenFile]:
    """Return the reader of a file: of a TIFF, its own, whatever image's suffix the file has."""
    reader = find_reader(path)
    if reader is PillowFile:
        with path.open("rb") as file:
            if file.read(4) in _TIFF:
                return find_reader(Path("a.tif"))
    return reader


def _name_reader(suffix: str) -> str:
    return _own.get(suffix) or (suffix[1:] if can_read(suffix) else "png")


def find_readers(paths: Iterable[Path]) -> list[type[OpenFile]]:
    """Return the different readers of files, in the order of their first ones."""
    firsts = {path.suffix.lower(): path for path in paths}
    return list(dict.fromkeys(map(find_reader, firsts.values())))


def describe_readers(paths: Iterable[Path]) -> list[str]:
    """Return the digests of the source code of files' readers, except this package's."""
    names = {_name_reader(path.suffix.lower()) for path in paths}
    texts = [text for name in names for text in read_sources("readers", name).values()]
    return sorted({hashlib.sha256(text.encode()).hexdigest()[:8] for text in texts})


class Source(AbstractContextManager["Source"]):
    """An image file, open from its first use until `close`; what it says of itself is read once.

    One thread uses it at a time. An object in storage is fetched once. With `planes` it is a mask whose
    bands or pages may each be a class; see `OpenFile.planes`.
    """

    def __init__(self, path: Path, planes: bool = False) -> None:
        self.path = path
        self._planes = planes
        self._opened: OpenFile | None = None

    def __reduce__(self) -> tuple[type[Source], tuple[Path, bool]]:
        return Source, (self.path, self._planes)  # another process opens the file itself

    def close(self, *_: object) -> None:
        """Close the file; using it again opens it again."""
        opened = self._opened
        self._opened = None
        if opened is not None:
            opened.close()

    __exit__ = __del__ = close

    @contextmanager
    def reading(self) -> Iterator[OpenFile]:
        """Yield the open file, and make an error of reading it a UserError of one line."""
        opened = self._opened
        # Of an object, a copy that goes with what is open.
        path = as_path(str(self.path)) if opened is None else opened.path
        with as_user_error(path):
            reader = _find_real_reader(path) if opened is None else type(opened)
            with explaining(reader, path):
                if opened is None:
                    opened = self._opened = reader(path)
                    opened.planes = self._planes
                yield opened

    def _ask(self, question: Callable[[OpenFile], Any]) -> Any:
        """Return what the open file answers; None if it can't be read."""
        try:
            with self.reading() as opened:
                return question(opened)
        except UnreachableError:  # the next use would wait for it, too
            raise
        except UserError:
            return None

    @cached_property
    def place(self) -> Any:
        """Place on a map; None without map coordinates, or if it can't be read."""
        if not issubclass(find_reader(self.path), Scene):  # nothing to open
            return None
        return self._ask(lambda opened: opened.place if isinstance(opened, Scene) else None)

    @cached_property
    def header(self) -> Header:
        """Size and format; pixels are not decoded."""
        with self.reading() as opened:
            return check_header(opened)

    def image(
        self, wanted: ImageFormat, *, scale: float = 1.0
    ) -> tuple[Pixels, NDArray[np.bool_] | None]:
        """Return the image (H, W, C) as `wanted`, the data set's format, at `scale` of its size.

        With it comes a mask (H, W) of its pixels without data, which are filled; None if the data
        set has no no-data value. See `fit_pixels`.
        """
        with self.reading() as opened:
            pixels = opened.read(wanted)
            check_pixels(opened, pixels, "read")
            has_alpha = pixels.shape[2] == wanted.channels + 1 and opened.header.has_alpha
        size = scaled_size(pixels.shape[0], pixels.shape[1], scale)
        return fit_pixels(pixels, wanted, size, self.path, has_alpha=has_alpha)

    def rows(self, wanted: ImageFormat, *, at_least: int = 0) -> Rows | None:
        """Return the image by rows, if it has so many pixels; None if only the whole can be read."""

        def ask(opened: OpenFile) -> Rows | None:
            return opened.rows(wanted, at_least) if isinstance(opened, Scene) else None

        found: Rows | None = self._ask(ask)
        return found

    def mask(self, *, scale: float = 1.0, labels: ClassValues | None = None) -> Codes:
        """Return the mask's values (H, W) at `scale`: each is the file's value at the new pixel's centre.

        Grey values and palette indices of 8 bit are uint8, others int32; colours are 0xRRGGBB, int32. With `labels`,
        they become colours, or the values of these, if the classes are such, and a palette is that of the classes.
        """
        labels = None if self._planes else labels
        with self.reading() as opened:
            values = opened.read_mask()
        if scale != 1:
            values = resize_nearest(values, scaled_size(values.shape[0], values.shape[1], scale))
        if labels and labels.rgb and values.ndim == 2 and values.dtype == np.uint8:
            values = list_colours(self.header.palette, self.header.bits)[values]
        elif labels and labels.palette and self.header.palette:
            values = labels.from_indices(values, self.header.palette)
        if values.ndim == 2:
            dtype = np.uint8 if values.dtype == np.uint8 else np.int32
            return values.astype(dtype, copy=False)
        if values.min() < 0 or values.max() > 255:
            raise UserError(
                f"{self.path}: colours beyond 0 to 255; save the mask with 8 bit, or in grey"
            )
        packed = values[..., 0].astype(np.int32)
        for band in (1, 2):  # in place: such a mask may be large
            packed <<= 8
            packed |= values[..., band]
        return labels.from_colours(packed, self.path) if labels else packed

    def hides_shape(self, values: Codes) -> bool:
        """Return whether a mask (H, W) or (H, W, 3) has one colour that is not black, and its shape in the transparency.

        Drawing programs save a layer so; what is transparent would count as drawn.
        """
        first, header = values[0, 0], self.header
        is_plain = header.has_alpha and first.any() and (values[0] == first).all()
        if not is_plain or not (values == first).all():
            return False
        pixels, _ = self.image(ImageFormat(header.channels + 1, header.dtype))
        alpha = pixels[..., -1]
        return bool(alpha.any() and not alpha.all())

    def thumbnail(self, size: int) -> NDArray[np.float32]:
        """Return the image in grey, (size, size), decoded as small as its format allows."""
        with self.reading() as opened:
            return opened.read_thumbnail(size)


def hidden_shape_message(mask: Path) -> str:
    """Return the message for a mask that `Source.hides_shape`."""
    return (
        f"{mask}: has one colour, and its shape in the transparency, which is not read; save the mask with "
        "a black background, without transparency"
    )


def read_mask(path: Path, *, scale: float = 1.0, labels: ClassValues | None = None) -> Codes:
    """Return the mask's values (H, W) at `scale`; see `Source.mask`."""
    with Source(path) as source:
        return source.mask(scale=scale, labels=labels)
