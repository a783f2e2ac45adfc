"""The files of an image that outputs write, where a user's own may do it in another way."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from unet_ddp.errors import UserError, shorten
from unet_ddp.files import is_address, write_errors
from unet_ddp.prediction.outputs.base import ADVICE, ImageFiles, Output


def list_files(output: Output, image: ImageFiles) -> list[Path]:
    """Return the files of an image that an output writes; a user's own may name one without a list."""
    found: object = output.files(image)
    paths = [found]
    if isinstance(found, Iterable) and not isinstance(found, str):
        paths = [*found]
    files = [path for path in paths if isinstance(path, Path)]
    if len(files) < len(paths):
        raise UserError(
            f"{output.flag}: files returned {shorten(found)}; return a list of pathlib.Path, or []"
        )
    return files


def make_folders(files: ImageFiles) -> None:
    """Make the folders of an image's files: a user's own output may not."""
    for path in files.written:
        if not is_address(path):
            with write_errors(path, ADVICE):
                path.parent.mkdir(parents=True, exist_ok=True)


def check_made(output: Output, image: ImageFiles) -> None:
    """Raise a UserError if a file of an image is missing that a user's own output has had to write."""
    if not output.flag.startswith("--write "):
        return
    for path in list_files(output, image):
        if not is_address(path) and not os.path.exists(path):
            raise UserError(
                f"{output.flag}: write has not made {path}, which files names; make it there, or leave it out "
                "of files"
            )
