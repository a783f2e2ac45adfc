"""Labels of masks that are polygons, from the values of an attribute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import MaskValues, choose_labels
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError, join_some
from unet_ddp.extras.polygons.burnt_mask import parse
from unet_ddp.extras.polygons.classes import BACKGROUND

_SHOWN = 12  # names in a message


def name_classes(masks: MaskValues, config: DataConfig) -> Labels:
    """Return the background and the classes of texts by name, or a class for each number that occurs.

    Raises:
        UserError: --class-names or --classes says something else.
    """
    examples = [*masks.examples.values()]
    if not any(parse(Path(example)) for example in examples):
        raise UserError(
            f"--class-field {config.class_field}: is for masks that are polygons, {examples[0]} is none; leave it out"
        )
    if not masks.names:
        return choose_labels(masks, replace(config, class_field=None))
    names, field = (BACKGROUND, *masks.names), config.class_field
    if config.class_names is not None or config.classes not in (None, len(names)):
        flag = "--classes" if config.class_names is None else "--class-names"
        raise UserError(
            f"{flag}: the {len(names)} classes are {BACKGROUND} and the texts of --class-field {field}, "
            f"{join_some(masks.names, _SHOWN)}; leave {flag} out"
        )
    return Labels(tuple(range(len(names))), ignore=config.ignore_index, names=names)
