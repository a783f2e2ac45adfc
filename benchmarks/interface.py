"""The public interface as plain values: what docs/reference/public.md promises, by names and defaults.

python -m benchmarks.interface
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import unet_ddp
from benchmarks.reference import COMMANDS
from benchmarks.reference_python import MEMBERS
from benchmarks.timing import new_parser
from unet_ddp.commands.doctor import DataClass
from unet_ddp.commands.export_call import RuntimeScores
from unet_ddp.evaluation.results import ClassScores
from unet_ddp.extras.serve.app import Service
from unet_ddp.extras.serve.settings import ServeConfig
from unet_ddp.plugins.built_in.commands import COMMANDS as NAMES
from unet_ddp.settings import Setting, settings_of

_RESULTS: tuple[Any, ...] = ClassScores, RuntimeScores, DataClass  # in attributes of results
ROOT = Path(__file__).parents[1]


def describe_interface() -> dict[str, Any]:
    """Return the names of all that is public, and the defaults of arguments and flags."""
    return {
        "python": {name: dict(_describe_members(name)) for name in unet_ddp.__all__},
        "results": {kind.__name__: _as_keys(kind._fields) for kind in _RESULTS},
        "commands": {name: _describe_flags(name) for name in NAMES},
        "recipes": _as_keys(path.stem for path in (ROOT / "unet_ddp/recipes").glob("*.yaml")),
        "entry points": _as_keys(_find_entry_points()),
        "imports": {module: _as_keys(names) for module, names in _find_imports().items()},
        "paths of serve": {
            route.path: _as_keys(route.methods)
            for route in Service(None, ServeConfig()).build_app().routes
        },
    }


def find_missing(kept: Any, now: Any, place: str = "") -> Iterator[str]:
    """Yield what was in an interface and has changed or gone; what was added is none of it."""
    if not isinstance(kept, dict):
        if kept != now:
            yield f"{place}: was {kept}, is {now}"
        return
    for name, each in kept.items():
        here = f"{place} {name}".strip()
        if not isinstance(now, Mapping) or name not in now:
            yield f"{here}: gone"
        else:
            yield from find_missing(each, now[name], here)


def _as_keys(names: Any) -> dict[str, Any]:
    return dict.fromkeys(sorted(names), True)


def _describe_members(name: str) -> Iterator[tuple[str, Any]]:
    """Yield what a name of the package can be called with, and its public attributes and methods likewise."""
    kind = getattr(unet_ddp, name)
    if not inspect.isclass(kind):
        yield "()", _describe_call(kind)
        return
    if issubclass(kind, Exception):
        yield "is an error", [each.__name__ for each in kind.__mro__].index("Exception") > 0
    text = inspect.getdoc(kind) or ""
    listed = re.findall(
        r"^    (\w+): ", text.partition("Attributes:\n")[2].partition("\n\n")[0], re.M
    )
    made_with = ["__init__"] if "\nArgs:\n" in text else []
    for member in dict.fromkeys((*listed, *made_with, *MEMBERS[name])):
        found = getattr(kind, member, None)
        if inspect.isfunction(found) or inspect.ismethod(found):
            yield member, _describe_call(found)
        elif _has(kind, member):
            yield member, "attribute"


def _has(kind: type, name: str) -> bool:
    """Return whether instances of a class have an attribute: its own, a field, or one that a method sets."""
    known = hasattr(kind, name) or name in inspect.get_annotations(kind)
    return known or bool(re.search(rf"self\.{name}\b[^=\n]*=", inspect.getsource(kind)))


def _describe_call(function: Any) -> dict[str, Any]:
    """Return the arguments of a function with their defaults; the places of those that may have no name."""
    arguments = {}
    for place, each in enumerate(inspect.signature(function).parameters.values()):
        if each.name != "self":
            default = "required" if each.default is inspect.Parameter.empty else repr(each.default)
            is_named = each.kind == inspect.Parameter.KEYWORD_ONLY
            arguments[each.name] = default if is_named else f"{default}, at place {place}"
    return arguments


def _describe_flags(command: str) -> dict[str, Any]:
    """Return the flags of a command, each with its names, default and choices."""
    kind = COMMANDS[command]
    unused = getattr(kind, "unused", frozenset[str]())
    flags: dict[str, Any] = {}
    for name, setting in settings_of(kind).items():
        if name not in unused:
            default = "required" if setting.default is MISSING else repr(setting.default)
            flags[setting.flag] = {
                "default": default,
                **_as_keys(f"also {each}" for each in setting.names if each != name),
                **_as_keys(f"takes {each}" for each in _choices_of(setting)),
            }
    return flags


def _choices_of(setting: Setting) -> list[str]:
    """Return the words that may follow a flag, if there is a list of them."""
    found, pending = [], [setting.hint]
    while pending:
        hint = pending.pop()
        if get_origin(hint) is Literal:
            found += map(str, get_args(hint))
        elif get_origin(hint) is Annotated:
            pending.append(get_args(hint)[0])
        else:
            pending += get_args(hint)
    return found


def _find_entry_points() -> list[str]:
    """Return the groups of entry points that the page lists."""
    page = (ROOT / "docs/reference/public.md").read_text(encoding="utf-8")
    return re.findall(r"`(unet_ddp\.\w+)`", page.partition("## Parts of your own")[2])


def _find_imports() -> dict[str, list[str]]:
    """Return what the examples of a user's own parts import, by its modules, as far as it is there."""
    page = (ROOT / "docs/own_parts.md").read_text(encoding="utf-8")
    found = {"unet_ddp.extras.cvat": ["create"], "unet_ddp.data.readers.read": ["use_own_readers"]}
    found["unet_ddp.data.readers.base"] = ["Scene"]
    for module, names in re.findall(r"^    from (unet_ddp\.\S+) import (.+)$", page, re.M):
        found.setdefault(module, []).extend(names.split(", "))
    return {
        module: [name for name in names if hasattr(import_module(module), name)]
        for module, names in found.items()
        if find_spec(module)
    }


if __name__ == "__main__":
    new_parser(__doc__).parse_args()
    print(json.dumps(describe_interface(), indent=1))
