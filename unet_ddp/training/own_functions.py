"""Attributes of functions of the user's own: a run may change them, and the next one in the process has them as before.

A function can't be copied: it finds itself by its name in its module.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unet_ddp.training.own_holders import holders

_before: list[
    tuple[dict[str, Any], dict[str, Any]]
] = []  # attributes that a run may change, and copies


def remember_attributes(part: object) -> None:
    """Remember the attributes of the functions that `part` is or calls, as they are now."""
    for _, holder in holders(part):
        if inspect.isfunction(holder):
            _before.append((vars(holder), {**vars(holder)}))


@contextmanager
def setting_back() -> Iterator[None]:
    """Give functions at the end the attributes that they had when they were remembered first."""
    _before.clear()
    try:
        yield
    finally:
        while _before:
            attributes, copies = _before.pop()
            attributes.clear()
            attributes.update(copies)
