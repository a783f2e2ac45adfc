"""Settings as users write them: how config.py declares their flags, and files of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tyro

from unet_ddp.errors import UserError, shorten
from unet_ddp.files import refuse_special
from unet_ddp.storage import local_file

_NO_DEFAULT = ("None", "()", "")  # said in the field's own line

_LARGEST_FILE = 100_000  # bytes of settings

Plain = bool | int | float | str | list[Any] | None


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


def parse_time(text: str, name: str) -> float:
    """Return the seconds in the value of the flag `name`: 90s, 30m, 1.5h.

    Raises:
        UserError: it is no such time.
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([smh])", text)
    if found is None:
        raise UserError(f"{name} {shorten(text)}: not a time; use one like 90s, 30m or 2h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def read_settings(path: Path) -> dict[str, Plain]:
    """Return the settings in a YAML file: plain values, or lists of them, by their names.

    Raises:
        UserError: it is no such file.
    """
    import yaml

    depth = 0
    try:
        with local_file(path) as local:
            refuse_special(local)
            if local.stat().st_size > _LARGEST_FILE:
                raise UserError(f"{path}: more than 100 kB; no settings are that long")
            text = local.read_text(encoding="utf-8")
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > 4 or isinstance(event, yaml.AliasEvent):  # aliases repeat without bound
                raise UserError(f"{path}: not a YAML file of plain values and lists")
        settings = yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; use a YAML file of settings") from None
    except UserError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or what no number is
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: not a YAML file: {reason}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path}: settings are lines of 'name: value', named as the flags are")
    return settings
