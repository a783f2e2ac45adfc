"""The table of parts: each can be imported, is called as the others of its point, and is asked for by the core."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from unet_ddp.config import TrainConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import PairKind
from unet_ddp.data.readers.base import OpenFile
from unet_ddp.plugins import built_in, find
from unet_ddp.plugins.built_in import BUILT_IN
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.settings import Calls, Names, pairs_of
from unet_ddp.storage import Storage

TABLE = Path(built_in.__file__)
PACKAGE = TABLE.parents[1]
PARTS = [(point, name) for point, parts in BUILT_IN.items() for name in parts]
SOURCES = [path.read_text() for path in PACKAGE.rglob("*.py") if path != TABLE]

KINDS = {"labels": Labels, "readers": OpenFile, "pairs": PairKind, "storage": Storage}
BACKEND = dict.fromkeys(("scale", "fold", "bfloat16", "network", "runtime"))
# Number of arguments, and those that are named.
CALLED: dict[str, tuple[int, dict[str, None]]] = {
    "commands": (1, {}),
    "heads": (1, {}),
    "label_rules": (2, {}),
    "planners": (2, {}),
    "losses": (1, {}),
    "pixel_factors": (1, {}),
    "backends": (2, BACKEND),
    "callbacks": (1, {}),
    "outputs": (3, {}),
}


@pytest.mark.parametrize(("point", "name"), PARTS)
def test_a_part_is_called_as_the_others_of_its_point(point: str, name: str) -> None:
    part = find(point, name)
    if point in KINDS:
        assert issubclass(part, KINDS[point])
    elif point == "networks":  # the rest are settings
        inspect.signature(part).bind_partial(3, 2)
    elif point == "settings":
        assert len(part.place) == 2
    else:
        count, named = CALLED[point]
        inspect.signature(part).bind(*range(count), **named)


@pytest.mark.parametrize("point", BUILT_IN)
def test_a_point_has_parts_that_the_core_asks_for(point: str) -> None:
    assert any(f'find("{point}", ' in text for text in SOURCES)


def test_a_point_has_several_parts() -> None:
    """Two points are of users and packages: ours are fields and presets."""
    few = [point for point, parts in BUILT_IN.items() if len(parts) < 2]
    assert few == ["settings", "augmentations"]


def test_settings_name_points() -> None:
    for kind in (TrainConfig, PredictConfig):
        named = {name for rule in (Calls, Names) for _, name in pairs_of(kind, rule)}
        assert named <= {*BUILT_IN, "auto"}  # the last: a value that calls its part
