"""Objects of which a part of the user's own is made, and its plain numbers, which are saved with the run.

A part is a network, a loss or another callable object.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch import nn

OF_TORCH = {*vars(nn.Module()), "training"}  # names
_BITS = 1024  # of a whole number: torch reads none of more than 2040


def holders(part: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each object whose attributes belong to `part`, and its path: modules, or what a callable is made of."""
    if isinstance(part, nn.Module):
        for path, module in part.named_modules(prefix=name):
            yield path, module
            function = vars(module).get("function")  # of a loss that is no module
            if function is not None and getattr(function, "__self__", None) is not module:
                yield from holders(function, path)
    elif isinstance(part, partial):
        for number, each in enumerate((part.func, *part.args, *part.keywords.values())):
            yield from holders(each, f"{name}.{number}")
    elif inspect.ismethod(part):
        yield from holders(part.__self__, name)
    elif hasattr(part, "__dict__") and not inspect.isclass(part):
        yield name, part
        for key, value in vars(part).items():
            if isinstance(value, nn.Module):
                yield from holders(value, f"{name}.{key}")


def modules_of(part: object) -> list[nn.Module]:
    """Return the outermost modules of which a callable object is made, itself if it is one."""
    found: list[nn.Module] = []
    inner: set[nn.Module] = set()
    for _, holder in holders(part):
        if isinstance(holder, nn.Module) and holder not in inner:
            found.append(holder)
            inner |= {*holder.modules()}
    return found


class Numbers:
    """The plain numbers among the attributes of parts, as a counter of passes; saved where a run has changed them."""

    def __init__(self, parts: Mapping[str, object] | None = None) -> None:
        self._holders = {
            name: vars(each)
            for key in parts or {}
            for name, each in holders((parts or {})[key], key)
        }
        self._first = self.read()

    def read(self) -> dict[str, float]:
        """Return all of them, by their places."""
        found = {}
        for place, attributes in self._holders.items():
            for name, value in attributes.items():
                if isinstance(value, (bool, int, float)) and name not in OF_TORCH:
                    found[f"{place}:{name}"] = value
        return found

    def state_dict(self) -> dict[str, float | str]:
        """Return the numbers that differ from a new part's, by their places; very long ones in hexadecimal digits."""
        changed = {name: n for name, n in self.read().items() if [n] != [self._first.get(name)]}
        return {name: _to_plain(n) for name, n in changed.items()}

    def load_state_dict(self, saved: Mapping[str, object], *, whole: bool = True) -> None:
        """Restore what `state_dict` returned, if `whole` with the others' first values; a part that is gone is left out."""
        for place, number in ({**self._first, **saved} if whole else saved).items():
            name, _, attribute = place.rpartition(":")
            number = int(number, 16) if isinstance(number, str) else number
            if name in self._holders and isinstance(number, (bool, int, float)):
                self._holders[name][attribute] = number


def _to_plain(number: float) -> float | str:
    """Return a number as a checkpoint's reader takes it, with all of its digits."""
    if isinstance(number, bool) or not isinstance(number, int):
        return number if isinstance(number, bool) else float(number)
    return int(number) if number.bit_length() < _BITS else hex(number)
