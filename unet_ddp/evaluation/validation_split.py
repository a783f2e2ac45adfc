"""The validation pairs that a checkpoint's own run had."""

from __future__ import annotations

from pathlib import Path

from unet_ddp.cli import config_from_saved
from unet_ddp.data.checks.check import prepare_data
from unet_ddp.data.checks.scan import Progress
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pair
from unet_ddp.errors import UserError
from unet_ddp.runs.checkpoint import Content
from unet_ddp.runs.resume import split_fingerprint


def own_validation(
    content: Content, source: Path, labels: Labels, *, progress: Progress, workers: int = 1
) -> list[Pair]:
    """The pairs that the run of `content` was validated on, found as the run found them.

    Args:
        content: a checkpoint of ours.
        source: its file, for messages.

    Raises:
        UserError: the checkpoint does not tell, or they are not there any more.
    """
    if "config" not in content:
        raise UserError(
            f"{source}: does not tell what it was trained on: give --images and --masks"
        )
    config = config_from_saved(content["config"])
    try:
        data = prepare_data(
            config.data,
            seed=config.optimization.seed,
            progress=progress,
            workers=workers,
            labels=labels,
        )
    except UserError as error:
        raise UserError(
            f"{source}: the images of its run can't be had: {error}; or give --images and --masks"
        ) from None
    if content.get("names", split_fingerprint(data.split)) != split_fingerprint(data.split):
        raise UserError(
            f"{source}: the images or their split are not those that its run had; give --images "
            "and --masks of what is to be scored"
        )
    if not data.split.validation:
        raise UserError(
            f"{source}: its run kept no image for validation; give --images and --masks"
        )
    return data.split.validation


def resizes_masks(content: Content) -> bool:
    """Whether the run of `content` was told to bring masks to the size of their images."""
    return bool(content.get("config", {}).get("resize_masks"))
