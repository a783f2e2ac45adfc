"""The text of --help, with the flags that most runs need, and of --help-all, with every flag."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Set
from dataclasses import MISSING
from typing import Any, Literal, get_args, get_origin, get_type_hints

import tyro

from unet_ddp.settings import Brief, Heading, Kind, Setting, as_flag, once, settings_of

_COLUMN = 29  # where the text of a flag begins
_WIDEST = 100  # characters of a line


def format_help(kind: Any, prog: str, *, is_whole: bool, unused: Set[str] = frozenset()) -> str:
    """Return the help of the command `prog`, whose configurations are of class `kind`.

    Unless it `is_whole`, it has no other flags of a run than those with a `Brief` line.
    """
    declared = [(name, each) for name, each in settings_of(kind).items() if name not in unused]
    settings = dict(sorted(declared, key=lambda item: bool(item[1].group)))  # its own first
    positionals = [f" {_metavar(name, each)}" for name, each in declared if _is_positional(each)]
    text = read_doc(kind)
    if not prog.endswith(".py"):
        text = _without_scripts(text)
    lines = [f"usage: {prog} [-h]{''.join(positionals)} [OPTIONS]", "", text]
    brief = [name for name, each in settings.items() if find_note(each, Brief) or not each.group]
    if len(brief) < len(settings) and not is_whole:
        lines.append("")
        for name in brief:
            each = settings[name]
            flag = name_flag(name, each, at_most=2)
            lines += _format_row(flag, describe(kind, each, is_short=True))
        lines += ["", f"{prog} --help-all has every flag."]
    else:
        for heading, names in divide(kind, settings).items():
            lines.append("")
            if heading:
                lines.append(f"{heading}:")
            for name in names:
                each = settings[name]
                lines += _format_row(name_flag(name, each), describe(kind, each))
    return "\n".join(lines) + "\n"


def _without_scripts(text: str) -> str:
    """Return examples that need no clone: it alone has train.py and predict.py."""
    text = re.sub(r"torchrun --nproc_per_node=(\d+) (\w+)\.py", r"unet-ddp \2 --nproc \1", text)
    return re.sub(r"python (\w+)\.py", r"unet-ddp \1", text)


def find_note(setting: Setting, kind: type[Any]) -> Any:
    """Return what of a class stands beside a setting; None without."""
    return next((note for note in setting.notes if isinstance(note, kind)), None)


def _is_positional(setting: Setting) -> bool:
    return tyro.conf.Positional in setting.notes


def divide(kind: Any, settings: dict[str, Setting]) -> dict[str, list[str]]:
    """Return the names of the settings by heading: a group's docstring is its heading; extras come last."""
    sections: dict[str, list[str]] = {}
    extras = []
    heading = ""
    groups = get_type_hints(kind)
    for name, each in settings.items():
        marked = find_note(each, Heading)
        if each.group:
            heading = read_doc(groups[each.group]).partition("\n")[0].rstrip(".")
        elif marked:
            heading = marked.text
        package = _owner(kind, each).__module__.partition(".")[0]
        if each.group and (Kind.EXTRA in each.notes or package != "unet_ddp"):
            extras.append(name)
        else:
            sections.setdefault(heading, []).append(name)
    if extras:
        sections["Extras"] = extras
    return sections


def _owner(kind: Any, setting: Setting) -> type[Any]:
    """Return the class in whose source the field of a setting stands."""
    owner: type[Any] = kind
    if setting.group:
        owner = get_type_hints(kind)[setting.group]
    return next(each for each in owner.__mro__ if setting.field in read_docs(each))


@once
def _parse(kind: type[object]) -> ast.ClassDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return tree.body[0]  # type: ignore[return-value]  # it is a class


def read_doc(kind: type[object]) -> str:
    """Return the docstring of a class by its source: python -OO strips it, and a dataclass then shows its signature."""
    return ast.get_docstring(_parse(kind)) or ""


@once
def read_docs(kind: Any) -> dict[str, str]:
    """Return the docstrings under the fields of a class, by their names."""
    if kind.__module__ == "builtins":
        return {}
    docs = {}
    field = ""
    for node in _parse(kind).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=field)):
                docs[field] = ""
            case ast.Expr(value=ast.Constant(value=text)) if field:
                docs[field] = inspect.cleandoc(str(text))
            case _:
                field = ""
    return docs


def describe(kind: Any, setting: Setting, *, is_short: bool = False) -> str:
    """Return the docstring of a setting, or its `Brief` line, with its default."""
    text = read_docs(_owner(kind, setting))[setting.field]
    brief = find_note(setting, Brief)
    if is_short and brief:
        text = brief.text
    default = setting.default
    if _is_positional(setting) or "default:" in text:
        return text
    if default is MISSING:
        return f"{text} (required)"
    if isinstance(default, bool) or default in (None, (), ""):
        return text
    values = default if isinstance(default, tuple) else (default,)
    shown = (f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return f"{text} (default: {' '.join(shown)})"


def name_flag(name: str, setting: Setting, at_most: int = 9) -> str:
    """Return a flag with its short forms and the name of its value."""
    if _is_positional(setting):
        return _metavar(name, setting)
    short = [f"-{alias}" for alias in setting.names[1:] if len(alias) == 1]
    long = [as_flag(alias) for alias in setting.names if len(alias) > 1]
    flags = short + long
    names = ", ".join(flags[:at_most])
    if setting.default is True:
        return f"{names}, {as_flag(f'no_{name}')}"
    return f"{names} {_metavar(name, setting)}".rstrip()


def _metavar(name: str, setting: Setting) -> str:
    """Return what stands for a setting's value: empty for a switch."""
    for note in setting.notes:
        if getattr(note, "metavar", None):
            return str(note.metavar)
    kind = setting.hint
    while get_origin(kind) not in (Literal, None):
        kind = get_args(kind)[0]
    return "|".join(map(str, get_args(kind)))


def _format_row(flag: str, text: str) -> list[str]:
    width = min(shutil.get_terminal_size((80, 24)).columns, _WIDEST)
    begin = f"  {flag}"
    rows = []
    if len(begin) > _COLUMN - 2:
        rows.append(begin)
        begin = ""
    rows += textwrap.wrap(
        text,
        max(width, _COLUMN + 30),
        initial_indent=begin.ljust(_COLUMN),
        subsequent_indent=" " * _COLUMN,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return rows or [begin]
