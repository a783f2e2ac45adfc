"""Images that a program has opened by Pillow, read as files of the same picture are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image

from unet_ddp.data.readers.base import Codes, ImageFormat, Pixels
from unet_ddp.data.readers.pillow import decode, decode_mask
from unet_ddp.errors import UserError, words_of

_CLOSED = re.compile(r"\b(of|on) closed (image|file)\b")


def has_alpha(image: Image.Image) -> bool:
    """Return whether the last band says how transparent pixels are."""
    return image.mode in ("LA", "PA", "RGBA")


def decode_picture(image: Image.Image, channels: int | None, name: str) -> Pixels:
    """Return the pixels (H, W, channels), upright; `channels` of None: all that it has, alpha is the last.

    Raises:
        UserError: a file of it is refused, too; the message begins with `name`.
    """
    if channels is None:
        is_grey = Image.getmodebase(image.mode) == "L"
        channels = (1 if is_grey else 3) + has_alpha(image)
    with _naming(image, name):
        return decode(image, ImageFormat(channels), name)


def decode_picture_mask(image: Image.Image, name: str) -> Codes:
    """Return the values (H, W) or colours (H, W, 3) of a mask, upright and without alpha; see `decode_picture`."""
    with _naming(image, name):
        image.load()  # else the values of a file with few bits would differ before and after their first use
        return decode_mask(image, name)


@contextmanager
def _naming(image: Image.Image, name: str) -> Iterator[None]:
    """Turn an error of reading the file of an image that was only opened into a line."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # decoders raise all kinds for corrupt files
        if _is_closed(image, error):
            raise UserError(
                f"{name}: is closed; open it again, or use it before it is closed"
            ) from error
        reason = words_of(error) or type(error).__name__
        raise UserError(f"{name}: corrupt or truncated ({reason}); replace it") from None


def _is_closed(image: Image.Image, error: Exception) -> bool:
    """Return whether an error is Pillow's or Python's of an image or a file that is closed, not a decoder's."""
    if isinstance(error, AssertionError):
        return getattr(image, "fp", None) is None
    return isinstance(error, ValueError) and bool(_CLOSED.search(str(error)))
