"""The table of parts: each can be imported, is called as its comment says, and is asked for by the core."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from unet_ddp.config import TrainConfig
from unet_ddp.plugins import built_in, find
from unet_ddp.plugins.built_in import BUILT_IN
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.settings import Calls, Names, pairs_of

TABLE = Path(built_in.__file__)
PACKAGE = TABLE.parents[1]
PARTS = [(point, name) for point, parts in BUILT_IN.items() for name in parts]
SOURCES = [path.read_text() for path in PACKAGE.rglob("*.py") if path != TABLE]


def comments() -> dict[str, str]:
    """Return the last line of the comment above each point and each extra, by its name."""
    above = re.findall(r'^ {4,8}# (.*)\n {4,8}"(\w+)": [{"]', TABLE.read_text(), re.M)
    return {name: line for line, name in above}


@pytest.mark.parametrize(("point", "name"), PARTS)
def test_a_part_is_called_as_its_comment_says(point: str, name: str) -> None:
    part, line = find(point, name), comments()[name if point == "extras" else point]
    arguments = re.search(r"\((.*?)\)", line)
    assert callable(part)
    if arguments is not None:
        text, more, _ = arguments[1].partition(", **")
        words = text.split(", ")
        named = [word[:-1] for word in words if word.endswith("=")]
        plain = [word for word in words if not word.endswith("=")]
        signature = inspect.signature(part)
        bind = signature.bind_partial if more else signature.bind
        bind(*plain, **dict.fromkeys(named))


@pytest.mark.parametrize("point", BUILT_IN)
def test_a_point_has_parts_that_the_core_asks_for(point: str) -> None:
    text = "\n".join(SOURCES)
    if point != "extras":
        assert f'find("{point}", ' in text
    for name in BUILT_IN["extras"] if point == "extras" else ():
        assert f'find("extras", "{name}")' in text, name


def test_a_point_has_several_parts() -> None:
    """What has one is an extra; two points are of users and packages: ours are fields and presets."""
    few = [point for point, parts in BUILT_IN.items() if len(parts) < 2]
    assert few == ["settings", "augmentations"]


def test_settings_name_points() -> None:
    for kind in (TrainConfig, PredictConfig):
        named = {name for rule in (Calls, Names) for _, name in pairs_of(kind, rule)}
        assert named <= {*BUILT_IN, "auto"}  # the last: a value that calls its part
