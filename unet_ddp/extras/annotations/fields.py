"""Values in files of annotations, each checked when it is used: an error says where it stands."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.errors import UserError, shorten

_LARGEST = 2**31  # whole number: sizes, ids of classes, orders


def show(value: Any) -> str:
    """Return a value for a message, in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "an object of fields"
    if isinstance(value, (list, array)):
        return f"a list of {len(value)}"
    return shorten(value)


@dataclass(frozen=True)
class Fields:
    """An object of a file, by the names of its fields; `where` says what it is."""

    values: Any
    where: str

    def __post_init__(self) -> None:
        """Refuse what is no object.

        Raises:
            UserError: a list, or a single value.
        """
        if not isinstance(self.values, Mapping):
            raise UserError(f"{self.where} is {show(self.values)}; expected an object of fields")

    def has(self, name: str) -> bool:
        """Return whether a field has a value."""
        return self.values.get(name) is not None

    def get(self, name: str) -> Any:
        """Return a value of any kind but null."""
        if name not in self.values:
            raise UserError(f"{self.where}: {name} is missing; add it, or export the file again")
        return self.values[name]

    def refuse(self, name: str, expected: str) -> UserError:
        """Return the error of a field that is not as `expected`."""
        return UserError(f"{self.where}: {name} is {show(self.get(name))}; expected {expected}")

    def text(self, name: str) -> str:
        """Return a text; a number is one, too."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise self.refuse(name, "text")
        return str(value)

    def whole(self, name: str) -> int:
        """Return a whole number, which may be written as text."""
        number = _to_number(self.get(name))
        if number is None or number != round(number) or abs(number) > _LARGEST:
            raise self.refuse(name, "a whole number")
        return int(number)

    def key(self, name: str) -> str:
        """Return an identifier, a number or text: 3, 3.0 and "3" are one."""
        value = self.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise self.refuse(name, "a number or text")
        if isinstance(value, int) and abs(value) > 2**63:
            raise self.refuse(name, "a number of fewer digits")
        return str(value).strip()

    def size(self, height: str, width: str) -> tuple[int, int] | None:
        """Return (height, width) of an image; None if the file does not say it, or says 0."""
        if not self.has(height) or not self.has(width):
            return None
        found = self.whole(height), self.whole(width)
        for name, side in zip((height, width), found, strict=True):
            if side < 0:
                raise self.refuse(name, "1 or more")
        return found if all(found) else None

    def fields(self, name: str) -> Fields:
        """Return an object."""
        return Fields(self.get(name), f"{self.where}: {name}")

    def rows(self, name: str, one: str) -> Iterator[Fields]:
        """Return the objects of a list, each named `one` and its id or place."""
        values = self.get(name)
        if not isinstance(values, list):
            raise self.refuse(name, "a list")
        where = f"{self.where}: " if self.where else ""
        return (Fields(each, f"{where}{one} {_name(each, k)}") for k, each in enumerate(values))


def _name(value: Any, place: int) -> str:
    found = value.get("id") if isinstance(value, Mapping) else None
    return show(found).strip("'") if isinstance(found, (str, int)) else f"no. {place + 1}"


def _to_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def to_numbers(value: Any, where: str) -> NDArray[np.float64]:
    """Return a list of numbers, or of pairs of them, as one array.

    Raises:
        UserError: it is something else.
    """
    expected = "expected a list of numbers"
    if not isinstance(value, (list, tuple, array, np.ndarray)):
        raise UserError(f"{where} is {show(value)}; {expected}")
    try:
        numbers = np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where} is a list of other things; {expected}") from None
    return numbers.reshape(-1)


def to_points(value: Any, where: str) -> NDArray[np.float64]:
    """Return an outline (N, 2) of x, y, x, y and so on, or of pairs of x and y."""
    numbers = to_numbers(value, where)
    if numbers.size % 2:
        raise UserError(f"{where} has {numbers.size} numbers; expected x, y, x, y and so on")
    return numbers.reshape(-1, 2)
