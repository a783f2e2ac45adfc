"""The parts of this package that are found by name: each is imported when it is asked for."""

from __future__ import annotations

from typing import Any

from unet_ddp.plugins.built_in.commands import COMMANDS
from unet_ddp.plugins.built_in.of_data import HEADS, LABEL_RULES, LABELS, PAIRS, READERS, STORAGE
from unet_ddp.plugins.built_in.of_prediction import BACKENDS, OUTPUTS
from unet_ddp.plugins.built_in.of_training import (
    CALLBACKS,
    LOSSES,
    NETWORKS,
    PIXEL_FACTORS,
    PLANNERS,
)
from unet_ddp.plugins.built_in.parts import Parts

# A point has several parts, which are asked the same: its table says when, by what name, and of what type. "By the
# setting": the part has the name of a setting with `Calls(point)`, which is not its default.
BUILT_IN: dict[str, Parts[Any]] = {
    "commands": COMMANDS,
    "labels": LABELS,
    "heads": HEADS,
    "readers": READERS,
    "pairs": PAIRS,
    "storage": STORAGE,
    "label_rules": LABEL_RULES,
    "planners": PLANNERS,
    "losses": LOSSES,
    "networks": NETWORKS,
    "pixel_factors": PIXEL_FACTORS,
    "callbacks": CALLBACKS,
    "backends": BACKENDS,
    "outputs": OUTPUTS,
    # of installed packages and users alone: a class whose fields join the settings of its `place`, when they are
    # defined; and by --augmentation, beside its presets: (image, mask, generator) -> both
    "settings": {},
    "augmentations": {},
}
