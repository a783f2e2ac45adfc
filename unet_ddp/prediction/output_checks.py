"""Checks before a job writes: refuse files that exist, are inputs, or can't be written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from unet_ddp.errors import UserError, shorten
from unet_ddp.files import (
    check_no_input,
    check_writable,
    identify_path,
    is_address,
    remove_stale,
    write_errors,
)
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.existing import find_existing, look_at, name_ways, sample_step
from unet_ddp.prediction.outputs.base import ImageFiles, Output
from unet_ddp.prediction.outputs.mask import MaskFile

_LONGEST_NAME = 255 - len("." + f".{2**22}.RANDOM78.tmp")  # bytes


def check_written(
    files: Sequence[ImageFiles],
    outputs: Sequence[Output],
    inputs: Iterable[tuple[str, Path]],
    config: PredictConfig,
) -> None:
    """Refuse outputs that can't be written; remove the temporary files that a killed job left of them."""
    lists = [(each.flag, each.path) for each in outputs if each.path is not None]
    for flag, path in lists:
        if not isinstance(path, Path):  # of a user's own output
            raise UserError(f"{flag}: its path is {shorten(path)}; make it a pathlib.Path")
        if is_folder(path):
            raise UserError(f"{flag} {path}: is a folder; give a file")
        if len(os.fsencode(path.name)) > _LONGEST_NAME:
            raise UserError(f"{flag} {path}: the name is too long; name another file")
    _check_distinct([(str(each.image), path) for each in files for path in each.written] + lists)
    new = [("--output", path) for each in files for path in each.written] + lists
    check_no_input(new, inputs)
    for flag, folder in dict.fromkeys((flag, path.parent) for flag, path in new):
        check_writable(folder, flag)
    remove_stale(path for _, path in new if not is_address(path))
    if config.overwrite:
        return
    refused = new
    if config.skip_existing:  # a file of all images is made again, see `Records`
        refused = [("--output", path) for path in _list_edited(files, outputs)]
        paths = [(each.flag, each.path, each.header) for each in outputs if each.path is not None]
        refused += [(flag, path) for flag, path, header in paths if _is_other(path, header)]
    existing = find_existing(path for _, path in refused)
    if not config.skip_existing and len(existing) < len(new):
        refused = lists  # the job writes what is missing, if what exists is the same
    for flag, path in refused:
        if path in existing:
            ways = name_ways(flag, skips=config.skip_existing)
            raise UserError(f"{path}: already exists; {ways}")


def _is_other(path: Path, header: str) -> bool:
    """Return whether a file exists, and begins in another way than one of all images with this header."""
    if not find_existing([path]):
        return False
    with write_errors(path), path.open("rb") as file:
        start = file.read(len(header.encode()))
    return start not in (b"", header.encode())


def _check_distinct(written: Iterable[tuple[str, Path]]) -> None:
    """Refuse two images or flags that would write one file."""
    owners: dict[tuple[object, ...], str] = {}
    for owner, path in written:
        key = identify_path(path)
        if key in owners:
            advice = "predict them separately and use --output"
            one, other = Path(owners[key]), Path(owner)
            if one.parent == other.parent and one.suffix != other.suffix:  # an image and its mask
                advice = f"predict one type alone, as {one.parent}/*{one.suffix}"
            if owner.startswith("--"):
                advice = "name another file"
            raise UserError(f"{owners[key]} and {owner} would both write {path}; {advice}")
        owners[key] = owner


def check_length(image: ImageFiles) -> None:
    """Raise a UserError if a file of an image, or its temporary file, has too long a name."""
    for path in image.written:
        if len(os.fsencode(path.name)) > _LONGEST_NAME:
            raise UserError(f"{image.image}: the name of {path} is too long; rename the image")


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder of this machine."""
    return not is_address(path) and os.path.isdir(path)


def _list_edited(files: Sequence[ImageFiles], outputs: Iterable[Output]) -> list[Path]:
    """Return the files of later outputs, of images that are not done: a person may have edited them."""
    edited = [each for each in outputs if each.turn > 1]
    if not edited:
        return []
    masks = next(each for each in outputs if isinstance(each, MaskFile))
    step = sample_step(files, reads=any(each.path is not None for each in outputs))
    done = {found.index for found in look_at(files, masks, step) if found.is_done}
    rest = [image for image in files if image.index not in done]
    return [path for image in rest for output in edited for path in output.files(image)]
