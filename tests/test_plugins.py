"""The tables of parts: each can be imported, and is asked for by the core."""

from __future__ import annotations

from pathlib import Path

import pytest

from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError
from unet_ddp.plugins import built_in, find
from unet_ddp.plugins.built_in import BUILT_IN
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.settings import Calls, Names, pairs_of

PACKAGE = Path(built_in.__file__).parents[2]
PARTS = [(point, name) for point, parts in BUILT_IN.items() for name in parts]
SOURCES = [path.read_text() for path in PACKAGE.rglob("*.py")]


@pytest.mark.parametrize(("point", "name"), PARTS)
def test_a_part_can_be_imported(point: str, name: str) -> None:
    """Its type is mypy's: that of the point's table."""
    assert callable(find(point, name))


@pytest.mark.parametrize("point", ["networks", "losses", "augmentations", "readers", "callbacks"])
@pytest.mark.parametrize(
    ("name", "said"), [("os:path", "a module"), ("math:pi", "3.14"), ("os:sep", "'.'")]
)
def test_what_is_no_class_or_function_is_named(point: str, name: str, said: str) -> None:
    with pytest.raises(UserError, match=rf"{name}: is {said}.*; name a class or a function"):
        find(point, name)


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
