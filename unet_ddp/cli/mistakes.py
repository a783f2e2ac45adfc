"""Mistakes in a command line, in a user's words: of what tyro says, and of flags without values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import tyro

from unet_ddp.errors import UserError, count_of
from unet_ddp.settings import as_flag, settings_of, values_of

_NO_VALUE = re.compile(r"Missing value for argument '(.+)'\. Expected (\d+|at least one) values?")
_NO_CHOICE = re.compile(r"invalid choice '(.*)' for argument '(.+)'\. Expected one of \((.*)\)")
_MISSING = re.compile(r"Missing from .*?: (.* \(required\))")
_ARGUMENT = re.compile(r"(?:-\w [A-Z]+, )?(--[\w-]{1,40}(?: [A-Z]+)?|[A-Z]+) (.+)")
_UNREAD = re.compile(r"Error parsing (.+?): (.+)")
_EXPECTED = re.compile(r"no type matching (.+) could be instantiated from \[(.*?)\]\. Got errors")
_NO_TUPLE = re.compile(r"Could not parse arguments \[(.*)\] into tuple type \S*\[(.*)\]")
_NO_NUMBER = re.compile(r"(?:invalid literal for int\(\) with base 10|could not convert string to (float)): '(.*)'")  # fmt: skip
_QUOTED = re.compile(r"""['"](.{0,400}?)['"](?:, |,?$)""")
_MANY = {"1": "a value", "at least one": "at least one value"}
_KINDS = {"INT": "whole number", "FLOAT": "number"}


def reword(said: str) -> str:
    """Return one line of tyro in a user's words; a line that is not known as it is."""
    if found := _NO_VALUE.fullmatch(said):
        flag, many = found.groups()
        if not flag.startswith("-"):  # what stands without a flag
            return f"give {flag.upper()}"
        return f"{flag}: give {_MANY.get(many) or count_of(int(many), 'value')}"
    if found := _NO_CHOICE.fullmatch(said):
        value, flag, choices = found.groups()
        return f"{flag} {value}: expected {_join(_QUOTED.findall(choices))}"
    if found := _MISSING.fullmatch(said):
        parts = [part.strip() for part in found[1].split("(required)") if part.strip()]
        found_parts = [_ARGUMENT.fullmatch(part) for part in parts]
        names = [each[1] if each else part for each, part in zip(found_parts, parts, strict=True)]
        first = found_parts[0]
        meaning = f": {first[2].rstrip('.')}" if first and len(names) == 1 else ""
        return f"give {', '.join(names)}{meaning}"
    if found := _UNREAD.fullmatch(said):
        return _reword_unread(*found.groups()) or said
    return said


def advise_on_flags(prog: str, near: Sequence[str]) -> str:
    """Return what to type in place of an unknown flag, and the help of a program, or of a function as unet_ddp.check."""
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return f"{hint}see help({prog})" if prog.startswith("unet_ddp.") else f"{hint}see {prog} --help"


def join_flags(names: Iterable[str]) -> str:
    """Return the flags of settings for a message."""
    return " and ".join(map(as_flag, names))


def check_typed(config: object, argv: Sequence[str]) -> None:
    """Raise a UserError if a flag was typed without the values that it needs, or twice with values that it would lose."""
    _refuse_empty(config, argv)
    _refuse_repeated(config, argv)


def _refuse_empty(config: object, argv: Sequence[str]) -> None:
    """Raise a UserError if a flag of several values was typed without any."""
    typed = [
        word.partition("=")[0].lstrip("-").replace("-", "_") for word in argv if word[:1] == "-"
    ]
    values = values_of(config)
    for name, each in settings_of(type(config)).items():
        if values[name] == () and not {name, *each.names}.isdisjoint(typed):
            raise UserError(f"{each.flag}: give at least one value")


def _refuse_repeated(config: object, argv: Sequence[str]) -> None:
    """Raise a UserError if a flag of any number of names is given twice, as only the last ones count.

    Of all other settings the last value counts, so that a script can be followed by flags of its user.
    """
    typed: dict[str, list[list[str]]] = {}
    last: list[str] = []
    for word in argv:
        if re.match("--?[A-Za-z]", word):
            flag, _, value = word.partition("=")
            last = [value] if value else []
            typed.setdefault(flag.lstrip("-").replace("-", "_"), []).append(last)
        else:
            last.append(word)
    for each in settings_of(type(config)).values():
        given = [found for alias in each.names for found in typed.get(alias, [])]
        if tyro.conf.UseAppendAction in each.notes or "str, ..." not in str(each.hint):
            continue
        others = [found for found in given if found != given[0]]
        if others:
            both = " and ".join(f"{each.flag} {' '.join(found)}" for found in (given[0], others[0]))
            raise UserError(f"{both}: give it once, with all values")


def _reword_unread(flag: str, reason: str) -> str:
    """Return why the values of a flag are refused; nothing if the reason is not known."""
    if found := _NO_NUMBER.fullmatch(reason):
        given, kind = f"{flag} {found[2]}".rstrip(), "FLOAT" if found[1] else "INT"
        return f"{given}: expected a {_KINDS[kind]}"
    if found := _EXPECTED.match(reason):
        kinds, typed = found.groups()
    elif found := _NO_TUPLE.match(reason):
        typed, kinds = found[1], found[2].upper()
    else:
        return ""
    wanted = [_describe(kind) for kind in kinds.split("|") if kind != "{None}"]
    given = " ".join([flag, *_QUOTED.findall(typed)])
    return f"{given}: expected {_join(wanted)}"


def _describe(kind: str) -> str:
    """Return a kind of values of which tyro writes {INT INT}, {[FLOAT [FLOAT ...]]} or {auto}."""
    words = re.findall(r"[A-Z]+(?![\w])", kind)
    if not words or words[0] not in _KINDS:
        return kind.strip("{}")
    name = _KINDS[words[0]]
    if "..." in kind:
        return f"{name}s"
    return count_of(len(words), name) if len(words) > 1 else f"a {name}"


def _join(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
