"""Earlier spellings of settings: understood, with a line, in this version only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from unet_ddp.cli.recipes import Scalar
from unet_ddp.errors import UserError, print_lines
from unet_ddp.settings import as_flag

Value = Any  # of a setting, as it is saved, typed or in YAML


class _Change(NamedTuple):
    """A setting, the names that it had, and the function of their values that returns its own.

    None as its value leaves the setting as it is.
    """

    name: str
    earlier: tuple[str, ...]
    convert: Callable[..., Value]


def _join_precision(amp: Value = True, amp_dtype: Value = "auto") -> Value:
    if not isinstance(amp, bool):
        return amp  # to be refused
    return amp_dtype if amp else "float32"


def _join_fold(fold: Value = None, folds: Value = None) -> str | None:
    if "/" in str(fold) and folds is None:
        return None
    if fold is None or folds is None:
        raise UserError("--fold and --folds are now one flag: --fold 1/5 is the first of five")
    return f"{fold}/{folds}"


def _join_limits(max_steps: Value = None, max_epochs: Value = None) -> str:
    if max_steps and max_epochs:
        raise UserError("--max-steps and --max-epochs are now one flag, --stop-after: use one")
    return f"{max_epochs}epochs" if max_epochs else str(max_steps)


def _to_percent(at_most: float) -> Callable[..., Value]:
    def convert(**share: Value) -> float | None:
        try:
            (value,) = map(float, share.values())
        except (TypeError, ValueError):
            return None  # what it is must be said where its type is known
        return round(100 * value, 10) if 0 < value <= at_most else None

    return convert


_BELOW_ONE = 1 - 1e-12
_CHANGES = (
    _Change("precision", ("amp", "amp_dtype"), _join_precision),
    _Change("fold", ("fold", "folds"), _join_fold),
    _Change("stop_after", ("max_steps", "max_epochs"), _join_limits),
    _Change(
        "loss_weights",
        ("dice_weight", "cross_entropy_weight"),
        lambda dice_weight=1, cross_entropy_weight=1: [dice_weight, cross_entropy_weight],
    ),
    _Change("mask_threshold", ("binary",), lambda binary: 0 if binary else None),
    _Change("label_smoothing", ("label_smoothing",), _to_percent(_BELOW_ONE)),
    _Change("overlap", ("overlap",), _to_percent(_BELOW_ONE)),
    _Change("balance", ("balance",), _to_percent(1)),
)
_EARLIER = {old: each.name for each in _CHANGES for old in each.earlier}
_SWITCHES = {"amp": True, "no_amp": False, "binary": True}


def earlier_name(name: str) -> str:
    """Return the name of a setting if it is an earlier spelling, otherwise nothing."""
    return name if name in _EARLIER else ""


def translate(settings: Mapping[str, Value], where: str | None = None) -> dict[str, Value]:
    """Return settings by today's names and in today's units.

    With `where`, the beginning of lines for the user, each that changed is said.

    Raises:
        UserError: a setting is given by its name and by an earlier one, or can't be translated.
    """
    kept, plain = {}, {}
    for name, value in settings.items():
        if name in _EARLIER and value is not None:
            plain[name] = value.value if isinstance(value, Scalar) else value
        if _EARLIER.get(name, name) == name:
            kept[name] = value
    lines = []
    for name, earlier, convert in _CHANGES:
        old = {each: plain[each] for each in earlier if each in plain}
        if not old:
            continue
        value = convert(**old)
        if value is None:
            continue
        if kept.get(name) is not None and name not in earlier:
            raise _given_twice(name, next(iter(old)))
        kept[name] = value
        flags = []
        for each, given in old.items():
            flags.append(as_flag(f"no_{each}" if given is False else each))
        now = " ".join([as_flag(name), *_list_words(value)])
        lines.append(f"{' and '.join(flags)}: now {now}")
    if where is not None and os.environ.get("RANK", "0") == "0":
        for line in lines:
            print_lines(f"note: {where}{line}; the next version won't take the old")
    return kept


def _list_words(value: Value) -> list[str]:
    """Return a value as it is typed."""
    return [*map(str, value)] if isinstance(value, list) else [str(value)]


def _given_twice(name: str, earlier: str) -> UserError:
    return UserError(f"{as_flag(name)} and {as_flag(earlier)} are one setting: use one")


def translate_argv(argv: Sequence[str], known: Set[str]) -> list[str]:
    """Return a command line by today's names, of a command whose settings are `known`; say what changed."""
    names = set()
    for old_name, new in _EARLIER.items():
        if new in known and (old_name == new or old_name not in known):
            names.add(old_name)
    words: list[str] = []
    old: dict[str, Value] = {}
    places: dict[str, int] = {}  # in the words, of today's flags
    today = set()
    rest = iter(argv)
    for word in rest:
        flag, sign, text = word.partition("=")
        name = flag[2:].replace("-", "_") if flag.startswith("--") else ""
        setting = name.removeprefix("no_") if name in _SWITCHES and not sign else name
        value = _SWITCHES.get(name, text if sign else None)
        if setting in names and value is None:
            value = next(rest, None)
        if setting not in names or value is None:
            words.append(word)
            today.add(setting)
        else:
            old[setting] = value
            places.setdefault(_EARLIER[setting], len(words))
        if word == "--":
            words.extend(rest)
    for name in old:
        if _EARLIER[name] in today:
            raise _given_twice(_EARLIER[name], name)
    found = translate(old, "")
    for name, place in sorted(places.items(), key=lambda item: -item[1]):
        if name in found:
            words[place:place] = [as_flag(name), *_list_words(found[name])]
    return words
