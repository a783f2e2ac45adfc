"""Attributes of functions of the user's own: a run may change them, and the next one in the process begins without that.

A function can't be copied: it finds itself by its name in its module.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unet_ddp.training.own_holders import holders

_Attributes = dict[str, Any]
_before: dict[Any, _Attributes] = {}  # copies, by the functions of the run
_changed: list[tuple[_Attributes, _Attributes, _Attributes]] = []  # with copies of before and after
_NONE = object()


def remember_attributes(part: object) -> None:
    """Remember the attributes of the functions that `part` is or calls, as they are now, if none are yet."""
    for _, holder in holders(part):
        if inspect.isfunction(holder):
            _before.setdefault(holder, {**vars(holder)})


@contextmanager
def setting_back() -> Iterator[None]:
    """Undo what the run before has changed in its functions, and remember at the end what this one has.

    So the user can read it after the run; what they have set since stays.
    """
    while _changed:
        _set_back(*_changed.pop())
    _before.clear()
    try:
        yield
    finally:
        for function, before in _before.items():
            _changed.append((vars(function), before, {**vars(function)}))


def _set_back(attributes: _Attributes, before: _Attributes, after: _Attributes) -> None:
    for name in {**before, **after}:
        if attributes.get(name, _NONE) is after.get(name, _NONE):
            if name in before:
                attributes[name] = before[name]
            else:
                del attributes[name]
