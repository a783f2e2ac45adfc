"""Command lines, recipes and saved settings to configurations; mistakes in one line.

The later wins: the default, the resumed checkpoint, ``--config recipe.yaml``, the command line.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import tyro

from unet_ddp.cli.help import format_help
from unet_ddp.cli.mistakes import advise_on_flags, check_typed, join_flags, reword
from unet_ddp.cli.recipes import (
    HEAD,
    Scalar,
    advise_on_key,
    check_own_code,
    convert,
    hide,
    naming_recipe,
    read_box,
    read_settings,
)
from unet_ddp.config import TrainConfig
from unet_ddp.errors import Limit, UserError, shorten
from unet_ddp.files import is_address, write_text
from unet_ddp.plugins import names_object
from unet_ddp.plugins.own import renew
from unet_ddp.settings import (
    Excludes,
    Kind,
    Needs,
    Replaces,
    Typed,
    as_flag,
    names_of,
    pairs_of,
    settings_of,
    values_of,
    with_values,
)

Config = TypeVar("Config")
Training = TypeVar("Training", bound=TrainConfig)

_COUNTABLE = Limit(-(2**53), 2**53)  # whole numbers
_AMP = {"--amp": "--precision=auto", "--no-amp": "--precision=float32"}  # usual for U-Net programs
_NAMES = {alias: name for name, each in settings_of(TrainConfig).items() for alias in each.names}


def parse_train(
    argv: Sequence[str],
    *,
    prog: str = "train.py",
    kind: type[Training] = TrainConfig,  # type: ignore[assignment]  # mypy issue 3737
) -> Training:
    """Return a `kind` of TrainConfig from a command line and the recipe that it names.

    Raises:
        UserError: an unknown flag or recipe key, or a value out of its limits.
    """
    # torch.distributed.launch passes the rank, which the environment has, too.
    argv = _translate_amp([w for w in argv if not re.fullmatch(r"--local[-_]rank=\d+", w)])
    # Other processes get the settings: pickle finds no class that was made there.
    config = with_values(kind(), values_of(_read_flags(kind, argv, prog)))
    check_values(config)
    typed = _find_given(argv)
    path = config.launch.config
    recipe = read_recipe(path) if path is not None else {}
    for where, names in (("", typed), (f"{path}: ", {*recipe})):
        for pair in pairs_of(kind, Replaces):
            if names.issuperset(pair):
                raise UserError(f"{where}{join_flags(pair)}: use one of them")
    hidden = _replaced_by(typed, kind)
    values = {name: value for name, value in recipe.items() if name not in hidden}
    for name, _ in pairs_of(kind, Typed):
        if values.get(name):
            raise UserError(f"{path}: {name}: use {as_flag(name)}, or delete the line")
    config = with_values(config, values)
    given = typed | recipe.keys()
    for name, other in pairs_of(kind, Replaces):
        if values_of(config)[name] is not None:
            given.discard(other)  # the recipe's: a resumed run keeps its plan
    with naming_recipe(path, values.keys()):
        check(config)
        if config.launch.resume not in (None, "auto"):
            config = _in_folder_of_resumed(config)
    check_own_code(values_of(config), given - values.keys())
    return replace(config, given=frozenset(given), recipe=frozenset(values))


def _replaced_by(typed: set[str], kind: type[TrainConfig]) -> set[str]:
    """Return the names of a recipe's settings that the flags replace: the same, and what they exclude."""
    replaced = typed | {name for name, other in pairs_of(kind, Replaces) if other in typed}
    for pair in pairs_of(kind, Excludes):
        if typed.intersection(pair):
            replaced.update(pair)
    if "list" in typed:
        replaced |= {"images", "masks", "val_images", "val_masks"}
    return replaced


def parse(kind: type[Config], argv: Sequence[str], *, prog: str) -> Config:
    """Return a `kind` of configuration from a command line.

    Raises:
        UserError: an unknown flag, or values that `check` refuses.
    """
    config = _read_flags(kind, argv, prog)
    check(config)
    return config


def _read_flags(kind: type[Config], argv: Sequence[str], prog: str) -> Config:
    """Return a configuration as typed, with which a call begins; what tyro says in a box is a UserError of one line.

    If the help is asked for, it is printed, and the program ends.
    """
    renew()
    unused = getattr(kind, "unused", frozenset[str]())
    if not {"-h", "--help", "--help-all"}.isdisjoint(argv):
        print(format_help(kind, prog, is_whole="--help-all" in argv, unused=unused), end="")
        raise SystemExit(0)
    shown = hide(kind, unused) if unused else kind
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            config = tyro.cli(shown, args=argv, prog=prog, config=(tyro.conf.OmitArgPrefixes,))
    except SystemExit:
        said, near = read_box(box.getvalue())
        raise UserError(f"{reword(said)}; {advise_on_flags(prog, near)}") from None
    check_typed(config, argv)
    return config


def _find_given(argv: Sequence[str]) -> set[str]:
    """Return the names of the settings of a run that `argv` gives."""
    given = set()
    for word in argv:
        name = ""
        if word.startswith("--"):
            name = word[2:].split("=")[0].replace("-", "_")
        elif word.startswith("-"):
            name = word[1:2]  # -e5
        for key in (name, name.removeprefix("no_")):
            if key in _NAMES:
                given.add(_NAMES[key])
    if "images" in given and "masks" not in given:  # a pack, in place of all folders
        given |= {"masks", "list", "val_images", "val_masks"}
    return given


def _in_folder_of_resumed(config: Training) -> Training:
    """Return `config` with the run folder of ``--resume FILE``."""
    resume, file = config.launch.resume, config.resume_file
    folder = file.parent
    if not is_address(resume) and file.is_dir():
        raise UserError(f"--resume {resume}: is a folder; use --resume {quote(f'{file}/last.pt')}")
    if config.run.exp_name is not None and config.address.resolve() != folder.resolve():
        raise UserError(
            f"--resume {resume} continues in {folder}: leave --exp-name out, or start "
            "a new run from these weights with --load"
        )
    return replace(config, run=replace(config.run, checkpoints=str(folder), exp_name=None))


# -- recipes and saved settings ------------------------------------------------------------


def with_saved(config: TrainConfig, saved: Mapping[str, Any]) -> TrainConfig:
    """Return `config` with a run's saved settings, but for tracking and those given this time.

    `saved` is what `TrainConfig.to_dict` gave; unknown names are ignored.

    Raises:
        UserError: a value that its setting can't have.
    """
    names = config.to_dict().keys() - names_of(type(config), Kind.RUN_PLACE) - config.given
    values = {name: value for name, value in saved.items() if name in names and value is not None}
    for name in values.keys() & names_of(type(config), Kind.DATA_PLACE):
        if is_address(values[name]) or names_object(values[name]):  # a stranger's checkpoint
            raise UserError(
                f"{as_flag(name)}: the run's was {shorten(values[name])}; a checkpoint opens no address "
                "and starts no code: give the flag again"
            )
    config = with_values(config, _typed_values(values, "the checkpoint's configuration"))
    check(config)
    return config


def save_config(config: TrainConfig, path: Path) -> None:
    """Write `config` as a recipe that starts the same run, --wandb aside; whole or not at all."""
    import yaml

    write_text(path, f"{HEAD}\n{yaml.safe_dump(config.to_dict(), sort_keys=False)}", durable=True)


def read_recipe(path: Path | str) -> dict[str, Any]:
    """Return the settings in a YAML file, or in a recipe of this package, by their names.

    Raises:
        UserError: no YAML file, an unknown key, or a value that its setting can't have.
    """
    keys: dict[str, str] = {}
    values = {}
    for key, value in read_settings(path).items():
        if key == "amp":
            raise UserError(f"{path}: unknown key 'amp'; use precision: auto, or float32")
        name = _NAMES.get(key.replace("-", "_").lstrip("_"), "")
        if name in ("", "config"):
            raise UserError(f"{path}: unknown key {advise_on_key(path, key, _NAMES)}")
        if name in keys:
            raise UserError(f"{path}: {keys[name]} and {key} are one setting; use one of them")
        keys[name] = key
        if value is not None:
            values[name] = value
    return _typed_values(values, str(path))


def _translate_amp(argv: Sequence[str]) -> list[str]:
    """Return the words of a command line, with --precision in place of --amp and --no-amp."""
    words = [word.replace("_", "-").partition("=")[0] for word in argv]
    used = sorted({*_AMP, "--precision"} & {*words})
    if len(used) > 1:
        raise UserError(f"{' and '.join(used)} are one setting; use one of them")
    return [_AMP.get(word.replace("_", "-"), word) for word in argv]


def _typed_values(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    settings = settings_of(TrainConfig)
    typed = {}
    for name, value in values.items():
        try:
            typed[name] = convert(value, settings[name].hint)
        except (ValueError, OverflowError):
            if isinstance(value, Scalar):
                value = value.value if len(value.text) > 20 else value.text
            raise UserError(
                f"{source}: {name}: {shorten(value)} can't be a value of {as_flag(name)}; see train.py --help"
            ) from None
    return typed


# -- limits and rules ----------------------------------------------------------------------


def check(config: object) -> None:
    """Refuse settings that `check_values`, a rule beside their fields, or the `check` of a class refuses."""
    check_values(config)
    kind = type(config)
    given = {
        n for n, value in values_of(config).items() if value is not None and value is not False
    }
    for pair in pairs_of(kind, Needs):
        if len(given.intersection(pair)) == 1:
            raise UserError(f"{join_flags(pair)}: use both or neither")
    for pair in pairs_of(kind, Excludes):
        if given.issuperset(pair):
            raise UserError(f"{join_flags(pair)}: use one of them")
    for group in (config, *filter(is_dataclass, vars(config).values())):
        for part in type(group).__mro__:
            if "check" in vars(part):
                vars(part)["check"](group)


def check_values(config: object) -> None:
    """Refuse numbers beyond the limit beside their field, and text that no shell has filled in.

    It is empty, as an unset variable is, or has a ~ that was not expanded.
    """
    values = values_of(config)
    for name, each in settings_of(type(config)).items():
        found = values[name]
        if not isinstance(found, tuple):
            found = (found,)
        for value in found:
            if value == "" and name != "mask_suffix":  # masks named as their images
                raise UserError(f"{each.flag} '': is empty; give a value, or leave it out")
            if isinstance(value, str) and re.match(r"~(/|$)", value):
                raise UserError(
                    f"{each.flag} {value}: ~ was not expanded; write the folder in full"
                )
            limits = each.limits if isinstance(value, (int, float)) else []
            if isinstance(value, int):
                limits = [*limits, _COUNTABLE]
            for limit in limits:
                is_infinite = abs(value) == float("inf")
                if value not in limit or (is_infinite and not limit.infinite):
                    text = " ".join(map(shorten, found))
                    finite = " and finite" * is_infinite
                    raise UserError(f"{each.flag} {text}: must be {limit}{finite}")
