"""Annotations of the fields of configurations: their flags' names, values and help."""

from __future__ import annotations

import re
from typing import Any

import tyro

_NO_DEFAULT = ("None", "()", "")  # said in the field's own line


def flag(metavar: str, *aliases: str, name: str | None = None) -> Any:
    """Return the annotation of a flag that takes a value; `name` replaces the field's own."""
    return tyro.conf.arg(
        metavar=metavar,
        aliases=aliases or None,
        name=name,
        help_behavior_hint=lambda text: "" if text in _NO_DEFAULT else f"(default: {text})",
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
