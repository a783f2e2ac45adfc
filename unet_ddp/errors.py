"""Errors that a program reports in one line, and the checks of values that files contain."""

from __future__ import annotations

import errno
import importlib.util
import operator
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

FULL, BROKEN = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)), errno.EIO  # say disks
BAR = "UNET_DDP_BAR"  # in the environment of what this program starts: its reader shows bars
_SHOWN = 60  # characters of a value in a message
_LONGEST = 4096  # text or list in a file
_LARGEST = 2**53  # whole number in a file; floats count exactly up to here
_PLAIN = (str, int, float, type(None))
_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: f"text of at most {_LONGEST} characters",
    bool: "true or false",
}
USERINFO = re.compile(
    r"(?i)(\b[a-z][a-z0-9+.-]{1,30}:/{1,2})(?:[^/\s@]*@|[^/\s@]*:(?!\d+(?:/|$))[^\s@]*@)+"
)
"""A user's name and password in an address, after its scheme; a password may have / and @ in it."""
_BARE = re.compile(r"(?<![\w:/])//[^/\s@]+:[^\s@]+@")  # of an address whose scheme was cut off
_QUERY = re.compile(r"\b[a-z][a-z0-9+.-]{0,30}:/[^\s'\"<>]*[?#][^\s'\"<>]*", re.IGNORECASE)
_KEY = re.compile(
    r"(?i)([?&;#][\w.%~+-]*(?:sig|token|secret|passw|credential|key|auth|code)[\w.%~+-]*=)[^&;#]+"
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_DETAILS = re.compile(r"#@[^\s#@]*@([^\s#]*)\.\w+")  # of a part of a file: its name is shown
Checked = TypeVar("Checked")


class UserError(ValueError):
    """A mistake in the input: one line `error: …`, exit status 2.

    The message says what is wrong, in which file or flag, and what to do about it; it hides secrets of addresses.
    """

    def __init__(self, message: object) -> None:
        super().__init__(hide_secrets(message))


class UnreachableError(UserError):
    """A storage that can't be reached or refuses its keys: no other file of it can be read either."""


class RunError(Exception):
    """A failure of a run that is nobody's mistake, such as a full disk: one line, exit status 1.

    The message says what happened, what is left of the run, and what to do. Any other exception is
    a bug and keeps its traceback. Secrets of addresses in the message are hidden.
    """

    def __init__(self, message: object) -> None:
        super().__init__(hide_secrets(message))


def check_installed(module: str, extra: str, needed_by: object) -> None:
    """Raise a UserError if `module`, of the extra `extra`, is not installed."""
    if command := install_command(module, extra):
        raise UserError(f"{needed_by}: needs {module}, which is not installed; {command}")


def install_command(module: str, extra: str) -> str:
    """Return what to type to install `module`, of the extra `extra`; empty if it is installed."""
    return "" if importlib.util.find_spec(module) else how_to_install(extra)


def how_to_install(extra: str) -> str:
    """Return what to type to install an extra: the clone again, or the extra's packages, as no index has this one."""
    root = Path(__file__).parent.parent
    if all((root / name).is_file() for name in ("pyproject.toml", "README.md")):
        clone = "." if Path.cwd() == root else str(root)
        return f"python -m pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    return " ".join(["python -m pip install", *map(shlex.quote, _list_packages(root, extra))])


def _list_packages(root: Path, extra: str) -> list[str]:
    """Return the names of an extra's packages, by the installed program or by the pyproject.toml beside it."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("unet-ddp") or ()
        found = [line for line in lines if re.search(rf"""extra == ["']{extra}["']""", line)]
    except PackageNotFoundError:  # as in the container image
        text = (root / "pyproject.toml").read_text(encoding="utf-8")
        found = re.findall('"(.+?)"', re.findall(rf"^{extra} = \[(.*?)\]$", text, re.M | re.S)[0])
    return [re.sub(r"[^][\w.,-].*", "", line) for line in found]  # without versions


def hide_secrets(message: object) -> str:
    """Return a text without the names and passwords of its addresses; keys in their queries become ***."""
    text = str(message)
    if len(text) > 4 * _LONGEST:  # the patterns' time grows with its square
        text = f"{text[: 2 * _LONGEST]} … {text[-2 * _LONGEST :]}"
    text = _BARE.sub("//", USERINFO.sub(r"\1", _DETAILS.sub(r"#\1", text)))
    return _QUERY.sub(lambda address: _KEY.sub(r"\1***", address[0]), text)


def one_line(error: object) -> str:
    """Return an error's message in one line that any terminal can show, without the secrets of addresses.

    File names may contain line breaks, or bytes that are not text: they become escapes.
    """
    text = hide_secrets(error).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def words_of(error: object) -> str:
    """Return the message of an error of other code, for a line: without line breaks and a terminal's colours."""
    return " ".join(_COLOURS.sub("", str(error)).split())


def print_lines(*lines: object) -> None:
    """Print lines, each by `one_line`: names in them can't move the cursor or break a line."""
    for line in lines:
        print(one_line(line))


def hides_bars() -> bool | None:
    """Return tqdm's `disable`: False in a notebook, and for who reads this output; None asks the stream, if there is one."""
    shows = BAR in os.environ or type(sys.stderr).__module__ == "ipykernel.iostream"
    return sys.stderr is None or (False if shows else None)


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: 1 image, 2 images, 2 processes."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{ending}"


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with its columns below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


# -- values of files -----------------------------------------------------------------------
# msgspec was tried in place of `Limit`, `typed` and `from_plain`. It knows no unknown names in dataclasses,
# and its messages lack the value, the other bound and the choices: with these, the code was longer.
# pydantic's import costs 3 % of the start of predict.py.


def shorten(value: object) -> str:
    """Return a value of a file for a message, in a few words whatever it contains."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}…"
    if isinstance(value, int) and abs(value) > _LARGEST:
        return f"a number of about {round(value.bit_length() * 0.30103)} digits"
    if isinstance(value, _PLAIN):
        return repr(value)
    kind = f"a {type(value).__name__}"
    if isinstance(value, (list, tuple)):
        if len(value) < 8 and all(isinstance(item, _PLAIN) for item in value):
            return f"[{', '.join(map(shorten, value))}]"
    elif not isinstance(value, dict):
        return kind
    return f"{kind} of {len(value)}"


def join_some(items: Sequence[str], most: int) -> str:
    """Return the first `most` of the items for a message, and how many more there are."""
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


@dataclass(frozen=True)
class Limit:
    """Range of a number, or of each number in a tuple; nan is in none."""

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    note: str = ""  # further words for the error message
    infinite: bool = False  # a setting may be so

    def __contains__(self, value: float) -> bool:
        """Return whether `value` is within all bounds."""
        return all(is_within(value, bound) for is_within, bound, _ in self._bounds())

    def __str__(self) -> str:
        """Return the bounds in words, to follow "must be"."""
        return " and ".join(words.format(bound) for _, bound, words in self._bounds()) + self.note

    def _bounds(self) -> list[tuple[Callable[[float, float], bool], float, str]]:
        """Return the bounds that it has, with their comparison and their words."""
        bounds = (
            (operator.ge, self.at_least, "{} or more"),
            (operator.gt, self.above, "above {}"),
            (operator.le, self.at_most, "at most {}"),
            (operator.lt, self.below, "below {}"),
        )
        return [(compare, bound, words) for compare, bound, words in bounds if bound is not None]


INT32 = Limit(-(2**31), 2**31 - 1)
"""Of the values in masks."""


def typed(value: Any, kind: Any) -> Any:
    """Return a value of a file as the type `kind`, if it is of that type and within its limits.

    A type is int, float, str, bool, a dict, a list, a short tuple (a list in the file) or a dataclass
    (see `from_plain`), or one of these or None. It may be Annotated with a `Limit`, or with all values
    that it may have.

    Raises:
        UserError: it is not: what it is, and what is expected.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        checked = typed(value, arguments[0])
        if checked not in arguments[1]:
            raise UserError(f"{shorten(value)}; expected {arguments[1]}")
        return checked
    if origin in (Union, UnionType):
        return None if value is None else typed(value, arguments[0])
    if hasattr(kind, "from_dict"):
        return kind.from_dict(value)
    if is_dataclass(kind):
        return from_plain(kind, value)  # type: ignore[arg-type]  # it is a class
    if origin in (list, tuple):
        return _typed_list(value, origin, arguments)
    if origin is dict:
        return _typed_dict(value, *arguments)
    is_kind = type(value) is kind or (kind is float and type(value) is int)
    is_large = isinstance(value, int) and abs(value) > _LARGEST
    is_long = isinstance(value, str) and len(value) > _LONGEST
    if not is_kind or is_large or is_long:
        raise UserError(f"{shorten(value)}; expected {_KINDS[kind]}")
    return kind(value)


def _typed_list(value: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
    """Return a list or a tuple, each item by `typed` as the first of `arguments`."""
    least, most = 0, _LARGEST
    if arguments[-1] is ...:
        most = _LONGEST
    elif origin is tuple:
        least = most = len(arguments)
    if isinstance(value, (list, tuple)) and least <= len(value) <= most:
        return origin(typed(item, arguments[0]) for item in value)
    size = most if least else f"at most {most}"
    raise UserError(f"{shorten(value)}; expected a list of {size}")


def _typed_dict(value: Any, key: type[Any], kind: type[Any]) -> Any:
    """Return a dict whose values are of a kind."""
    is_kind = isinstance(value, dict) and all(isinstance(item, kind) for item in value.values())
    if is_kind and {key}.issuperset(map(type, value)):
        return value
    name = "value" if kind is object else kind.__name__.lower()
    raise UserError(f"{shorten(value)}; expected {name}s by name")


@cache
def _types_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def from_plain(kind: type[Checked], plain: Any, *, is_open: bool = False) -> Checked:
    """Return a dataclass from the values of a file by its fields' names, each checked.

    With `is_open`, fields that the class does not have are left out: other readers know them.

    Raises:
        UserError: a field is missing, has a value that it can't have, or is unknown without
            `is_open`.
    """
    if not isinstance(plain, Mapping):
        raise UserError(f"{shorten(plain)}; expected fields by name")
    known = fields(kind)  # type: ignore[arg-type]  # it is a dataclass
    for name in plain:
        if not is_open and name not in [field.name for field in known]:
            raise UserError(f"{shorten(name)}: unknown")
    values = {}
    for field in known:
        try:
            if field.name in plain:
                kind_of_value = _types_of(kind)[field.name]  # type: ignore[arg-type]  # it can be hashed
                values[field.name] = typed(plain[field.name], kind_of_value)
            elif field.default is MISSING:
                raise UserError("missing")
        except UserError as error:
            raise UserError(f"{field.name}: {error}") from None
    return kind(**values)
