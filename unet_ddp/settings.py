"""Declarations of settings: flags, kinds and rules beside their fields; one walk over all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_type_hints

import tyro

from unet_ddp.errors import Limit, UserError
from unet_ddp.plugins import find, list_names

if TYPE_CHECKING:
    from typing_extensions import Self

Config = TypeVar("Config")
Function = TypeVar("Function", bound=Callable[..., Any])

Plain = bool | int | float | str | list[Any] | None

NAMES = tyro.conf.Suppress[tyro.conf.Fixed[frozenset[str]]]  # of settings; no flag


class Kind(Enum):
    """Kinds of settings; a setting may be of several, and a class gives its `kinds` to its fields."""

    DATA = "says what the data are: commands about data alone take it"
    LIMITED_BY_DATA = "doctor takes it, too, and checks it"
    DATA_PLACE = "says where data are: hosts may differ, no checkpoint's address is opened"
    RUN_PLACE = "says where the run is or begins: hosts may differ, no checkpoint sets it"
    FILES = "says what the run writes, and not what it is: changes without a word"
    PER_STEP = "says how many images a step takes: resume has words of its own for it"
    FIXED = "the weights depend on it: a resumed run keeps it"
    EXTENT = "says how much of a run this start does: a search for settings has its own"
    OF_HOST = "hosts may differ"
    EXTRA = "not every user needs it: the help has it at its end"


class Percent(Limit):
    """Range of a percentage, or 0. It begins at 1: 0.1 is often meant as a tenth."""

    def __contains__(self, value: float) -> bool:
        """Return whether `value` is 0 or within all bounds."""
        return value == 0 or super().__contains__(value)

    def __str__(self) -> str:
        """Return the bounds in words, to follow "must be"."""
        return f"0, or {super().__str__()} percent"


class Rule(tuple[str, ...]):
    """Texts beside a field: the names of other settings, unless a kind of rule says what they are."""

    def __new__(cls, *names: str) -> Self:
        """Return the rule of these names."""
        return super().__new__(cls, names)


class Excludes(Rule):
    """These can't be given with the field."""


class Needs(Rule):
    """These are given with the field, or none of them is."""


class Replaces(Rule):
    """These have defaults, and it takes their place: of both, the one that is typed counts."""


class Calls(Rule):
    """A point, whose part of the field's name is called (`called`, below); then the values that call it.

    Without values, all do but the default, None, 0 and False.
    """


class Names(Rule):
    """A point, of which the setting names a part; MODULE:NAME is code of the user's own, and must be typed."""


class Typed(Rule):
    """In words, what no recipe and no checkpoint switches on."""


class Brief(NamedTuple):
    """The line of a flag in the short help, which has no others."""

    text: str


class Heading(NamedTuple):
    """A heading of the help, above the flag of the field and those after it."""

    text: str


def flag(metavar: str, *aliases: str, name: str | None = None) -> Any:
    """Return the annotation of a flag that takes a value; `name` replaces the field's own."""
    return tyro.conf.arg(
        metavar=metavar,
        aliases=aliases or None,
        name=name,
    )


def _mask_value(text: str) -> int:
    return int(text[1:], 16) if re.fullmatch(r"#[0-9a-fA-F]{6}", text) else int(text)


MASK_VALUE = tyro.constructors.PrimitiveConstructorSpec(  # 255 or #rrggbb
    nargs=1,
    metavar="VALUE",
    instance_from_str=lambda argv: _mask_value(argv[0]),
    is_instance=lambda value: value is None or isinstance(value, int),
    str_from_instance=lambda value: [str(value)],
)
OPTIONAL_FILE = tyro.constructors.PrimitiveConstructorSpec(  # --resume, --resume FILE
    nargs="*",
    metavar="[FILE]",
    instance_from_str=lambda argv: argv[0] if argv else "auto",
    is_instance=lambda value: value is None or isinstance(value, str),
    str_from_instance=lambda value: [str(value)],
)


class Setting(NamedTuple):
    """The declaration of a setting: a field of a configuration, or of one of its groups."""

    group: str
    """The field of the configuration that contains it; empty for one without groups."""
    field: str
    hint: Any
    notes: tuple[Any, ...]
    """All that stands beside the field: its kinds, rules and limits."""
    limits: list[Limit]
    default: Any
    flag: str
    """Its flag; of one without, the name."""
    names: list[str]
    """All names it has, as learning_rate, l and lr."""


def as_flag(name: str) -> str:
    """Return the flag of a setting."""
    return "--" + name.replace("_", "-")


def joined(group: str) -> Callable[[type[Config]], type[Config]]:
    """Return a decorator: the settings of installed packages whose `place` is in the group join a class.

    They stand after the field that `place` names, and the class inherits from theirs.

    Raises:
        UserError: a package has a setting of a name that is taken.
    """

    def join(core: type[Config]) -> type[Config]:
        hints = dict(core.__annotations__)
        found = [find("settings", name) for name in list_names("settings")]
        parts = [part for part in found if part.place[0] == group]
        if not parts:
            return core
        for part in parts:
            own = get_type_hints(part, include_extras=True)
            for name in own.keys() & hints.keys():
                raise UserError(f"{as_flag(name)}: {part.__module__} has it, too; uninstall that")
            before = part.place[1]
            names = list(hints)
            after = names[names.index(before) + 1 :] if before in hints else []
            hints |= own | {name: hints.pop(name) for name in after}
        body = {name: getattr(core, name) for name in ("__module__", "__qualname__", "__doc__")}
        return type(core.__name__, (core, *parts), {**body, "__annotations__": hints})

    return join


def once(function: Function) -> Function:
    """Return a function that computes what it returns for a class once."""
    return cache(function)  # type: ignore[return-value]  # mypy knows no hash of dataclasses


@once
def settings_of(kind: Any) -> dict[str, Setting]:
    """Return the fields of a class of configurations and of its groups, by their names in flags and recipes."""
    settings: dict[str, Setting] = {}
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint = hints[field.name]
        if is_dataclass(hint):
            for name, each in settings_of(hint).items():
                settings[name] = each._replace(group=field.name)
        elif field.compare:
            notes = (*get_args(hint)[1:], *getattr(kind, "kinds", ()))
            name = field.name
            aliases: list[str] = []
            for note in notes:
                if hasattr(note, "aliases"):
                    name = note.name or name
                    aliases += [alias.lstrip("-") for alias in note.aliases or ()]
            settings[name] = Setting(
                group="",
                field=field.name,
                hint=hint,
                notes=notes,
                limits=[note for note in notes if isinstance(note, Limit)],
                default=field.default,
                flag=name if tyro.conf.Positional in notes else as_flag(name),
                names=[name, *aliases],
            )
    return settings


def values_of(config: object) -> dict[str, Any]:
    """Return the values of a configuration's settings, by their names."""
    values = {}
    for name, (group, field, *_) in settings_of(type(config)).items():
        owner = getattr(config, group) if group else config
        values[name] = getattr(owner, field)
    return values


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Return `config` with other values of some settings."""
    settings = settings_of(type(config))
    own: dict[str, Any] = {}
    of_groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        group, field, *_ = settings[name]
        (of_groups.setdefault(group, {}) if group else own)[field] = value
    for group, changed in of_groups.items():
        own[group] = replace(getattr(config, group), **changed)
    return replace(config, **own)  # type: ignore[type-var]  # it is a dataclass


def names_of(kind: Any, *kinds: Kind) -> frozenset[str]:
    """Return the names of the settings of a class of configurations that are of any of these kinds."""
    return frozenset(
        name for name, each in settings_of(kind).items() if not {*kinds}.isdisjoint(each.notes)
    )


@once
def pairs_of(kind: Any, rule: type[Rule]) -> list[tuple[str, str]]:
    """Return each setting of a class of configurations with each text of such a rule beside its field."""
    return [
        (name, text)
        for name, each in settings_of(kind).items()
        for note in each.notes
        if isinstance(note, rule)
        for text in note
    ]


def called(config: object, point: str) -> list[str]:
    """Return the names of the settings that call a part of a point."""
    values = values_of(config)
    names = []
    for name, each in settings_of(type(config)).items():
        for note in each.notes:
            if not isinstance(note, Calls) or note[0] != point:
                continue
            is_called = values[name] not in (None, 0, each.default)
            if note[1:]:
                is_called = values[name] in note[1:]
            if is_called:
                names.append(name)
    return names
