"""All that is known of a data set before the first step: found, checked, labelled, split.

Done by the main process alone; the others get the result.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from unet_ddp.config import DataConfig
from unet_ddp.data.checks.check import check_dataset
from unet_ddp.data.checks.metadata import ImageMetadata
from unet_ddp.data.checks.rules import measure_range
from unet_ddp.data.checks.scan import Findings, Progress
from unet_ddp.data.formats.header import ImageFormat
from unet_ddp.data.formats.resize import scaled_size
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pair
from unet_ddp.data.preprocessing import PixelRange
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError


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
    range: PixelRange | None = None
    """Measured on the training images; None for 8 bit, whose range is known."""
    groups: dict[str, str] = field(default_factory=dict)
    """The group of each pair, by name."""
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(height, width) of each image that was looked at, after scaling, by name."""

    @property
    def one_size(self) -> tuple[int, int] | None:
        """(height, width) of all images; None where they differ, or were not all looked at."""
        pairs = [*self.split.training, *self.split.validation]
        found = {self.sizes.get(pair.name) for pair in pairs}
        return found.pop() if len(found) == 1 else None


def prepare(
    config: DataConfig,
    *,
    seed: int,
    progress: Progress,
    workers: int = 1,
    labels: Labels | None = None,
    skip_bad: int = 0,
) -> PreparedData:
    """Find, check, label and split the data set that `config` names.

    Args:
        labels: those of the run that is resumed; None to infer them from the masks.
        skip_bad: files that can't be read are borne, up to this number.

    Raises:
        UserError: it can't be trained on; which file, and what to do.
    """
    data = check_dataset(
        config, seed=seed, progress=progress, workers=workers, labels=labels, skip_bad=skip_bad
    )
    split, found, labels, form = data.split, data.found, data.labels, data.format
    assert split is not None and found is not None and labels is not None and form is not None
    measured = measure_range(_facts_of(found, split.training), form.channels)
    return PreparedData(
        split,
        labels,
        form,
        crop_size(config, found),
        scaled_size(*min(found.sizes), config.scale),
        data.notes + [f"warning: {line}" for line in data.warnings],
        measured,
        data.groups,
        {
            pair.name: scaled_size(*size, config.scale)
            for pair, size in zip(found.pairs, found.sizes, strict=True)
        },
    )


def _facts_of(found: Findings, pairs: list[Pair]) -> list[ImageMetadata]:
    facts = {pair.name: image for pair, image in zip(found.pairs, found.images, strict=True)}
    return [facts[pair.name] for pair in pairs if pair.name in facts]


def crop_size(config: DataConfig, found: Findings) -> tuple[int, int] | None:
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


def check_classes(labels: Labels, weights: tuple[float, ...] | None) -> None:
    """Refuse class weights of another number than there are classes."""
    if weights is not None and len(weights) != labels.num_classes:
        raise UserError(
            f"--class-weights: {len(weights)} weights for {labels.num_classes} classes; give one "
            "for each"
        )
