"""The names of the files that a job writes; existing ones are only replaced with --overwrite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.files import check_writable, remove_stale
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.masks import probability_paths
from unet_ddp.prediction.outputs.shards import remove_stale_shards

_MASK_SUFFIXES = (".png", ".tif", ".tiff")


@dataclass(frozen=True)
class ImageFiles:
    """An image and the files of its prediction."""

    index: int
    """Position among the job's images."""
    image: Path
    mask: Path
    overlay: Path | None
    probabilities: list[Path]

    def outputs(self) -> Iterator[Path]:
        """Yield the files to write."""
        yield self.mask
        if self.overlay is not None:
            yield self.overlay
        yield from self.probabilities


def name_outputs(images: Sequence[Path], config: PredictConfig, labels: Labels) -> list[ImageFiles]:
    """Return the files of each image, once they and the lists can be written.

    Raises:
        UserError: two images would share a file, one already exists, or one can't be written.
    """
    masks = _name_masks(images, config)
    _check_distinct(images, masks)
    files = []
    for index, (image, mask) in enumerate(zip(images, masks, strict=True)):
        base = mask.with_name(mask.stem.removesuffix("_mask"))
        overlay = base.with_name(f"{base.name}_overlay.png") if config.overlay else None
        probabilities = probability_paths(base, config.probabilities, labels)
        files.append(ImageFiles(index, image, mask, overlay, probabilities))
    if not config.skip_existing:
        _check_new((path for each in files for path in each.outputs()), "--output", config)
    for folder in {mask.parent for mask in masks}:
        check_writable(folder, "--output")
    for flag, name in (("--rle", config.rle), ("--polygons", config.polygons)):
        if name is not None:
            path = Path(name)
            if path.is_dir():
                raise UserError(f"{flag} {name}: is a folder; give a file")
            _check_new([path], flag, config)
            check_writable(path.parent, flag)
            remove_stale([path])
            remove_stale_shards(path)
    remove_stale(path for each in files for path in each.outputs())
    return files


def is_done(files: ImageFiles) -> bool:
    """Return whether all files of an image exist."""
    return all(path.exists() for path in files.outputs())


def _name_masks(images: Sequence[Path], config: PredictConfig) -> list[Path]:
    output = Path(config.output) if config.output else None
    if output is not None and len(images) == 1 and output.suffix and not output.is_dir():
        if output.suffix.lower() not in _MASK_SUFFIXES:
            raise UserError(f"--output {output}: a mask keeps its values in .png or .tif only")
        return [output]
    ending = f"_mask.{config.mask_format}"
    return [(output or image.parent) / f"{image.stem}{ending}" for image in images]


def _check_new(paths: Iterable[Path], flag: str, config: PredictConfig) -> None:
    for path in paths:
        if not config.overwrite and path.exists():
            raise UserError(f"{path}: already exists; use --overwrite, or another {flag}")


def _check_distinct(images: Sequence[Path], masks: Sequence[Path]) -> None:
    """Check that no two images have the same mask, and that no mask is an image."""
    owners: dict[Path, Path] = {}
    for image, mask in zip(images, masks, strict=True):
        if mask in owners:
            raise UserError(
                f"{owners[mask]} and {image} would both write {mask}; predict them separately and "
                "use --output"
            )
        owners[mask] = image
    existing = {mask.resolve() for mask in masks if mask.exists()}
    if existing:  # images are resolved only then
        for image in images:
            if image.resolve() in existing:
                raise UserError(f"--output {image}: is one of the images; name another file")
