"""The type of a table of parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Part = TypeVar("Part")
Parts = Mapping[str, Callable[[], Part]]
"""By name, a function that imports a part: an editor finds it there, and mypy compares it with its type."""
