"""The names of the files that a job writes; existing ones are only replaced with --overwrite."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.files import (
    as_path,
    check_no_input,
    check_writable,
    identify_path,
    is_address,
    remove_stale,
)
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.base import ImageFiles, Output

_LONGEST_NAME = 255 - len("." + f".{2**22}.RANDOM78.tmp")  # bytes
_FEW = 20  # files at addresses; to ask for each is then faster than to list a folder
_MASK_SUFFIXES = (".png", ".tif", ".tiff")


def name_outputs(
    images: Mapping[Source, bool],
    config: PredictConfig,
    labels: Labels,
    outputs: Sequence[Output],
    *,
    models: Sequence[Path],
) -> list[ImageFiles]:
    """Return the files of each image (is it on a map?), once all outputs can be written.

    Raises:
        UserError: two outputs would be one file or one is an input, exists, or can't be written.
    """
    for output in outputs:
        output.check(images)
    masks, files = _name_masks(images, config, labels), []
    for index, (source, mask) in enumerate(zip(images, masks, strict=True)):
        image = ImageFiles(index, source, mask)
        files.append(replace(image, written=[p for each in outputs for p in each.files(image)]))
    lists = [(each.flag, each.path) for each in outputs if each.path is not None]
    written = [path for image in files for path in image.written]
    _check_distinct(files, lists)
    inputs = [("input", as_path(name)) for name in config.inputs]
    inputs += [("model", path) for path in models] + [("image", image.path) for image in images]
    check_no_input([*(("--output", path) for path in written), *lists], inputs)
    for folder in {mask.parent for mask in masks}:
        check_writable(folder, "--output")
    new = _list_edited(files, outputs) if config.skip_existing else written
    _check_new(new, "--output", config)
    for flag, path in lists:
        if _is_folder(path):
            raise UserError(f"{flag} {path}: is a folder; give a file")
        if _is_too_long(path):
            raise UserError(f"{flag} {path}: the name is too long; name another file")
        check_writable(path.parent, flag)
        _check_new([path], flag, config)
    written += [path for _, path in lists]
    remove_stale(path for path in written if not is_address(path))
    return files


def find_done(files: Sequence[ImageFiles]) -> list[ImageFiles]:
    """Return those of which all files exist."""
    existing = find_existing(path for each in files for path in each.written)
    return [each for each in files if existing.issuperset(each.written)]


def find_existing(paths: Iterable[Path]) -> set[Path]:
    """Return those that exist; at addresses a few are asked for, else their folders are listed."""
    existing: set[Path] = set()
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        if is_address(path):
            folders.setdefault(path.parent, []).append(path)
        elif os.path.exists(path):  # pathlib's raises for names that are too long
            existing.add(path)
    for folder, wanted in folders.items():
        if len(wanted) < _FEW:
            existing.update(path for path in wanted if path.exists())
        else:
            existing.update({*wanted}.intersection(folder.iterdir()))
    return existing


def check_length(image: ImageFiles) -> UserError | None:
    """Return an error if a file of an image, or its temporary file, has too long a name."""
    for path in image.written:
        if _is_too_long(path):
            return UserError(f"{image.image}: the name of {path} is too long; rename the image")
    return None


def _is_folder(path: Path) -> bool:
    return not is_address(path) and os.path.isdir(path)


def _is_too_long(path: Path) -> bool:
    return len(os.fsencode(path.name)) > _LONGEST_NAME


def _name_masks(images: Mapping[Source, bool], config: PredictConfig, labels: Labels) -> list[Path]:
    output = as_path(config.output) if config.output else None
    if output is not None and len(images) == 1 and output.suffix and not _is_folder(output):
        if output.suffix.lower() not in _MASK_SUFFIXES:
            raise UserError(f"--output {output}: a mask keeps its values in .png or .tif only")
        masks = [output]
    else:
        masks = []
        for image, is_on_map in images.items():
            default = "tif" if is_on_map else labels.mask_suffix
            ending = default if config.mask_format == "auto" else config.mask_format
            masks.append((output or image.path.parent) / f"{image.path.stem}_mask.{ending}")
    if labels.mask_suffix == "tif" and masks[0].suffix.lower() == ".png":
        raise UserError(
            f"{masks[0]}: values of several classes of objects need 32 bit; name a .tif with "
            "--output, or leave --mask-format png out"
        )
    return masks


def _list_edited(files: Sequence[ImageFiles], outputs: Iterable[Output]) -> list[Path]:
    """Return the files that are written after the mask: those of images without one are a person's."""
    edited = [each for each in outputs if each.turn > 1]
    done = {image.index for image in find_done(files)} if edited else set()
    rest = [image for image in files if image.index not in done]
    return [path for image in rest for each in edited for path in each.files(image)]


def _check_new(paths: Iterable[Path], flag: str, config: PredictConfig) -> None:
    paths = list(paths)
    existing = set() if config.overwrite else find_existing(paths)
    for path in paths:
        if path in existing:
            raise UserError(f"{path}: already exists; use --overwrite, or another {flag}")


def _check_distinct(files: Iterable[ImageFiles], lists: Sequence[tuple[str, Path]]) -> None:
    """Check that no two outputs are one file."""
    owners: dict[tuple[object, ...], str] = {}
    of_images = ((str(each.image), path) for each in files for path in each.written)
    for owner, path in (*of_images, *lists):
        other = owners.get(key := identify_path(path))
        owners[key] = owner
        if other is not None:
            advice = "predict them separately and use --output"
            if owner.startswith("--"):
                advice = "name another file"
            raise UserError(f"{other} and {owner} would both write {path}; {advice}")
