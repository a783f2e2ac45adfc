"""Recipes, and the parsing of flags by tyro."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from unet_ddp import __version__
from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError, shorten
from unet_ddp.files import as_path, refuse_special
from unet_ddp.files.contents import read_text
from unet_ddp.plugins import names_object
from unet_ddp.settings import (
    MASK_VALUE,
    OPTIONAL_FILE,
    Kind,
    Names,
    Plain,
    as_flag,
    names_of,
    pairs_of,
)

HEAD = f"# unet_ddp {__version__}: the settings of this run"
"""The first line of a run's config.yaml."""
_RECIPES = Path(__file__).parents[1] / "recipes"
_LARGEST_FILE = 100_000  # bytes of settings
_COLOUR = re.compile(r"^([\w-]+):\s+(#[0-9a-fA-F]{6})\b", flags=re.MULTILINE)

Config = TypeVar("Config")


def hide(kind: type[Config], names: Set[str]) -> type[Config]:
    """Return a configuration class whose fields of these `names`, in its groups too, are no flags."""
    types = get_type_hints(kind, include_extras=True)
    hidden: list[Any] = []
    suppress_flag: Any = tyro.conf.Suppress
    for each in fields(kind):  # type: ignore[arg-type]  # it is a dataclass
        hint = types[each.name]
        if is_dataclass(hint):
            group: Any = hide(hint, names)  # type: ignore[arg-type]  # it is a class
            hidden.append((each.name, group, field(default_factory=group)))
        elif each.name in names:
            hidden.append((each.name, suppress_flag[hint], field(default=each.default)))
    own = {"__doc__": kind.__doc__}
    return make_dataclass(kind.__name__, hidden, bases=(kind,), namespace=own, frozen=True)


def check_own_code(settings: Mapping[str, Plain], typed: Set[str]) -> None:
    """Refuse code that a recipe or a checkpoint names, and not the command line: it may be a stranger's.

    `typed` are the names of the settings on the command line, also on that of tune, which types them
    for its runs.
    """
    parts = {name for name, _ in pairs_of(TrainConfig, Names)}
    for name in (parts | names_of(TrainConfig, Kind.DATA_PLACE)) - typed:
        values = settings.get(name)
        if not isinstance(values, (list, tuple)):
            values = [str(values)]
        for value in values:
            if ":" in value and (name in parts or names_object(value)):
                raise UserError(
                    f"--{name} {value}: a recipe or a checkpoint starts no code; if you trust it, "
                    f"type --{name} {value}, too"
                )


def read_box(box: str) -> tuple[str, list[str]]:
    """Return what tyro says in a box, in one line, and the flags most like those that it does not know."""
    text = re.sub(r"\x1b\[[0-9;]*m|\[/?bold\]|[│╭╮╰╯]", "", box.partition("\n")[2])
    parts = re.split(r"^ *[─-]{3,} *$", text, flags=re.M)  # what draws no boxes has - for ─
    said, *others = [part for part in parts if part.strip()]  # below the title
    near = []
    for part in others:
        unknown = re.search(r"--\w[\w-]*", said if "Perhaps you meant" in part else part)
        if unknown and re.match(r"\s*(Perhaps you meant|Arguments similar to)", part):
            lines = re.findall(r"^ {5,6}-.*", part, flags=re.M)  # what they do stands further in
            options = re.findall(r"--[\w-]+", " ".join(lines))
            near += difflib.get_close_matches(unknown[0], options, n=1, cutoff=0)
    return " ".join(said.split()).rstrip(". "), sorted(near)


# -- recipes -------------------------------------------------------------------------------


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the advice for a name that is none of the `known` settings."""
    near = difflib.get_close_matches(name, {*known} - {name}, n=1)
    return f"did you mean {near[0]}?" if near else "see train.py --help"


def advise_on_key(path: Path | str, key: str, known: Iterable[str]) -> str:
    """Return a key of a recipe that is none of the `known` settings, for a message, and what to do about it."""
    advice = suggest(key[:80], known)
    text = read_text(find_recipe(str(path)), "a YAML file")
    head = re.match(r"# unet_ddp (\d[\w.]{0,20}): ", text)
    if head and head[1] != __version__:
        advice = f"the file is of unet_ddp {head[1]}, this is {__version__}: update it, or delete the line"
    return f"{shorten(key)}; {advice}"


def find_recipe(given: str) -> Path:
    """Return the file that ``--config`` means: a path or address, or a recipe of this package by name."""
    own = _RECIPES / f"{given}.yaml"
    if given.isidentifier() and own.is_file() and not Path(given).is_file():
        return own
    return as_path(given)


@contextmanager
def naming_recipe(recipe: str | None, names: Set[str]) -> Iterator[None]:
    """Have a UserError about one of the settings `names` say that ``--config recipe`` sets it."""
    try:
        yield
    except UserError as error:
        error.args = (name_recipe(str(error), recipe, names),)
        raise


def name_recipe(message: str, recipe: str | None, names: Set[str]) -> str:
    """Return an error that begins with flags, or says to leave one out, with the recipe that sets them."""
    if recipe is None:
        return message
    about = " ".join(re.findall(r"^(?:error: )?.*?(?:: |$)|leave --[\w-]+ out", message))
    known = set(map(as_flag, names))
    flags = [flag for flag in re.findall(r"--[\w-]+", about) if flag in known]
    if not flags:
        return message
    file = find_recipe(recipe)
    place = f"in a copy of {file}" if file.parent == _RECIPES else "there"
    return (
        f"{message}; --config {recipe} sets {', '.join(flags)}: give another value on the command line, "
        f"or delete it {place}"
    )


@dataclass(frozen=True)
class Scalar:
    """A value of a YAML file that YAML takes for no text, as 7, and what the file has: 007."""

    value: Plain
    text: str

    def __str__(self) -> str:
        """Return what the file has."""
        return self.text


def is_same(one: object, other: object) -> bool:
    """Return whether two values of a setting are the same; nan is nan."""
    return bool(one == other or (one != one and other != other))


def read_settings(path: Path | str) -> dict[str, Any]:
    """Return the settings in a YAML file or recipe: text, `Scalar`s, lists of them, or None, by their names.

    Raises:
        UserError: it is no such file, or has a name twice.
    """
    import yaml

    pairs = []
    try:
        file = find_recipe(str(path))
        refuse_special(file)
        if file.stat().st_size > _LARGEST_FILE:
            raise UserError(f"{path}: more than 100 kB; no settings are that long")
        text = read_text(file, "a YAML file")
        if not _is_plain(yaml.parse(text, yaml.SafeLoader)):
            raise UserError(f"{path}: not a YAML file of plain values and lists")
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if isinstance(root, yaml.MappingNode):
            pairs = [(str(name.value), _value_of(loader, node)) for name, node in root.value]
    except OSError as error:
        own = ", ".join(sorted(recipe.stem for recipe in _RECIPES.glob("*.yaml")))
        raise UserError(
            f"{path}: {error.strerror or error}; use a YAML file of settings, or one of {own}"
        ) from None
    except UserError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError: what no number is, or no date
        raise UserError(f"{path}: not a YAML file: {_explain(error)}; correct it") from None
    settings = dict(pairs)
    if not settings:
        raise UserError(f"{path}: settings are lines of 'name: value', named as the flags are")
    if len(settings) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise UserError(f"{path}: {shorten(twice)} stands there twice; delete one of the lines")
    for name, colour in _COLOUR.findall(text):
        if settings.get(name, "") is None:  # the colour has no quotes
            raise UserError(f"{path}: {name}: {colour} is a comment to YAML; write '{colour}'")
    return settings


def _explain(error: Exception) -> str:
    """Return what YAML's parser found, and where."""
    mark = getattr(error, "problem_mark", None)
    where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    problem = getattr(error, "problem", None) or "a value that is no number, text or date"
    return f"{problem}{where}"


def _is_plain(events: Iterable[Any]) -> bool:
    """Return whether a YAML file has only values and lists in lists of few levels."""
    import yaml

    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):  # aliases repeat without bound
            return False
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > 4:
            return False
    return True


def _value_of(loader: Any, node: Any) -> Any:
    """Return the value of a node of a YAML file; see `read_settings`."""
    if node.id == "sequence":
        return [_value_of(loader, item) for item in node.value]
    if node.id == "mapping":
        return {str(name.value): _value_of(loader, item) for name, item in node.value}
    value = loader.construct_object(node, deep=True)
    if node.id != "scalar" or value is None or isinstance(value, str):
        return value
    return Scalar(value, node.value)


def convert(value: Any, kind: Any) -> Any:
    """Return a value of a recipe or a checkpoint as the type `kind`, or raise a ValueError."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Annotated:
        if MASK_VALUE in arguments and isinstance(value, str):
            return MASK_VALUE.instance_from_str([value])
        is_switch = isinstance(value, Scalar) and isinstance(value.value, bool)
        if OPTIONAL_FILE in arguments and is_switch:  # as in Python; the flag has no value
            return OPTIONAL_FILE.instance_from_str([]) if value.value else None
        return convert(value, arguments[0])
    if origin in (Union, UnionType):
        for argument in arguments:
            with suppress(ValueError):
                return convert(value, argument)
    elif origin is tuple:
        if isinstance(value, (list, tuple)) and (
            arguments[-1] is ... or len(value) == len(arguments)
        ):
            return tuple(convert(item, arguments[0]) for item in value)
    elif isinstance(value, Scalar):
        if type(value.value) is int and re.search(r"^[+-]?0\d|:", value.text) and kind is not str:
            raise ValueError  # YAML reads 010 as 8, and 1:30 as 90
        return value.text if kind is str else convert(value.value, kind)
    elif value in arguments or type(value) is kind:
        return value
    elif kind in (int, float) and type(value) in (int, str):
        return kind(value)  # YAML takes 1e-3 for text
    raise ValueError
