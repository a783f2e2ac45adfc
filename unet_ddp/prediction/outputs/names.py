"""Which files a job writes; none that is there already is replaced untold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.files import check_writable, remove_stale, remove_stale_parts
from unet_ddp.prediction.outputs.masks import MASK_SUFFIXES, probability_paths


@dataclass(frozen=True)
class Outputs:
    """The files of one image."""

    mask: Path

    @property
    def base(self) -> Path:
        """What the names of the others begin with."""
        return self.mask.with_name(self.mask.stem.removesuffix("_mask"))

    @property
    def overlay(self) -> Path:
        return self.base.with_name(f"{self.base.name}_overlay.png")


def name_outputs(images: Sequence[Path], config: PredictConfig) -> list[Outputs]:
    """The files of each image.

    Raises:
        UserError: two images would share one, one is there already, or one can't be written.
    """
    given = Path(config.output) if config.output else None
    if given is not None and len(images) == 1 and given.suffix and not given.is_dir():
        if given.suffix.lower() not in MASK_SUFFIXES:
            raise UserError(f"--output {given}: masks keep their values in .png and .tif")
        masks = [given]
    else:
        ending = f"_mask.{config.mask_format}"
        masks = [(given or image.parent) / f"{image.stem}{ending}" for image in images]
    _check_apart(images, masks)
    outputs = [Outputs(mask) for mask in masks]
    if not config.skip_existing:
        for image_files in outputs:
            for path in _written(image_files, config):
                _check_free(path, config)
    for option, name in (("--rle", config.rle), ("--polygons", config.polygons)):
        if name is not None:
            path = Path(name)
            if path.is_dir():
                raise UserError(f"{option} {name}: is a folder; give a file")
            _check_free(path, config)
    lists = [Path(name) for name in (config.rle, config.polygons) if name is not None]
    for folder in {path.parent for path in (*masks, *lists)}:
        check_writable(folder)
    remove_stale([*masks, *(image_files.overlay for image_files in outputs), *lists])
    for path in lists:
        remove_stale_parts(path)
    return outputs


def check_probabilities(outputs: Sequence[Outputs], config: PredictConfig, labels: Labels) -> None:
    """As `name_outputs`, for files that are named after the classes."""
    if config.probabilities == "none":
        return
    paths = [
        path
        for image_files in outputs
        for path in probability_paths(image_files.base, config.probabilities, labels)
    ]
    if not config.skip_existing:
        for path in paths:
            _check_free(path, config)
    remove_stale(paths)


def is_done(outputs: Outputs, config: PredictConfig, labels: Labels) -> bool:
    """Whether every file of the image is there."""
    files = list(_written(outputs, config))
    if config.probabilities != "none":
        files += probability_paths(outputs.base, config.probabilities, labels)
    return all(path.exists() for path in files)


def _written(outputs: Outputs, config: PredictConfig) -> Iterator[Path]:
    yield outputs.mask
    if config.overlay:
        yield outputs.overlay


def _check_free(path: Path, config: PredictConfig) -> None:
    if not config.overwrite and path.exists():
        raise UserError(f"{path}: is there already; give --overwrite, or --output elsewhere")


def _check_apart(images: Sequence[Path], masks: Sequence[Path]) -> None:
    """No two images have one mask, and no mask is an image."""
    seen: set[Path] = set()
    for image, mask in zip(images, masks, strict=True):
        if mask in seen:
            raise UserError(f"{image}: its mask {mask} would be another image's too; predict apart")
        seen.add(mask)
    there = [mask for mask in masks if mask.exists()]
    if there:
        files = {_identity(image) for image in images if image.exists()}
        for mask in there:
            if _identity(mask) in files:
                raise UserError(f"--output {mask}: is one of the images; name another file")


def _identity(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_dev, state.st_ino
