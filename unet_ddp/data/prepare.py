"""All that is known of a data set before the first step: found, checked, labelled, split.

Done by the main process alone; the others get the result.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from unet_ddp.config import DataConfig
from unet_ddp.data.demo import write_demo
from unet_ddp.data.labels import Labels, infer_labels
from unet_ddp.data.pairs import Pair, Split, find_pairs, split_pairs
from unet_ddp.data.reading import SUFFIXES, ImageFormat, scaled_size
from unet_ddp.data.scan import Findings, Progress, scan
from unet_ddp.errors import UserError

HOME = Path("data")


@dataclass(frozen=True)
class PreparedData:
    """A data set, ready to be read."""

    split: Split
    labels: Labels
    format: ImageFormat
    crop_size: tuple[int, int] | None
    """(height, width) of training crops; None where all images have one size."""
    smallest: tuple[int, int]
    """(height, width) of the smallest image, after scaling."""
    notes: list[str]
    """What the user should know, a line each."""


def prepare(
    config: DataConfig,
    *,
    seed: int,
    progress: Progress,
    workers: int = 1,
    labels: Labels | None = None,
) -> PreparedData:
    """Find, check, label and split the data set that `config` names.

    Args:
        labels: those of the run that is resumed; None to infer them from the masks.

    Raises:
        UserError: it can't be trained on; which file, and what to do.
    """
    images, masks, notes = _folders(config)
    pairs, orphans = find_pairs(images, masks, suffix=config.mask_suffix)
    split = split_pairs(
        pairs, validation=config.validation, seed=seed, pattern=config.group_pattern
    )
    found = scan(pairs, progress=progress, workers=workers)
    if labels is None:
        labels = infer_labels(
            found.values,
            rgb=found.rgb,
            palette=found.palette,
            classes=config.classes,
            ignore=config.ignore_index,
        )
    notes += _describe(pairs, found, labels, config.scale)
    if orphans:
        notes.append(orphans)
    notes.append(
        f"split: {split.how}; {len(split.training)} images to train on, "
        f"{len(split.validation)} to validate"
    )
    smallest = scaled_size(*min(found.sizes), config.scale)
    return PreparedData(split, labels, found.format, _crop_size(config, found), smallest, notes)


def _folders(config: DataConfig) -> tuple[Path, Path, list[str]]:
    """Where the data is; the demo set where none was given and none lies in its place."""
    if config.images is not None and config.masks is not None:
        return Path(config.images), Path(config.masks), []
    images, masks = HOME / "imgs", HOME / "masks"
    if _holds_images(images) or _holds_images(masks):
        return images, masks, []
    demo = write_demo(HOME / "demo")
    note = f"no data: {images} and {masks} are empty, so this is the built-in demo set in {demo}"
    return demo / "imgs", demo / "masks", [note]


def _holds_images(folder: Path) -> bool:
    return folder.is_dir() and any(
        path.suffix.lower() in SUFFIXES or path.is_dir() for path in folder.iterdir()
    )


def _crop_size(config: DataConfig, found: Findings) -> tuple[int, int] | None:
    """One size for all training samples: a batch, and its statistics, do not depend on ranks."""
    if config.crop_size is not None:
        return config.crop_size
    sizes = [scaled_size(height, width, config.scale) for height, width in found.sizes]
    if len(set(sizes)) == 1:
        return None
    height, width = (
        max(16, int(statistics.median(size[side] for size in sizes))) for side in (0, 1)
    )
    return height, width


def _describe(pairs: list[Pair], found: Findings, labels: Labels, scale: float) -> list[str]:
    sizes = sorted(set(found.sizes))
    height, width = sizes[-1]
    many = f"{len(sizes)} sizes up to {width}x{height}" if len(sizes) > 1 else f"{width}x{height}"
    scaled = scaled_size(height, width, scale)
    kind = {1: "grey", 3: "colour"}.get(found.format.channels, f"{found.format.channels} bands")
    notes = [
        f"data: {len(pairs)} pairs, {many} pixels ({scaled[1]}x{scaled[0]} at scale {scale:g}), "
        f"{kind}, {8 if found.format.max_value == 255 else 16} bit"
    ]
    values = ", ".join(labels.show(value) for value in labels.values[:16])
    more = ", …" if labels.num_classes > 16 else ""
    ignored = f"; {labels.show(labels.ignore)} is ignored" if labels.ignore is not None else ""
    notes.append(f"classes: {labels.num_classes}, the mask values {values}{more}{ignored}")
    return notes


def check_classes(labels: Labels, weights: tuple[float, ...] | None) -> None:
    """Refuse class weights of another number than there are classes."""
    if weights is not None and len(weights) != labels.num_classes:
        raise UserError(
            f"--class-weights: {len(weights)} weights for {labels.num_classes} classes; give one "
            "for each"
        )
