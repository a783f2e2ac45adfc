"""Command lines, recipes and saved settings to configurations; mistakes in one line.

The later wins: the default, the resumed checkpoint, ``--config recipe.yaml``, the command line.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import tyro

from unet_ddp.cli.recipes import (
    Scalar,
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
from unet_ddp.settings import (
    Excludes,
    Kind,
    Needs,
    Replaces,
    Typed,
    all_names,
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


def parse_train(argv: Sequence[str], *, prog: str = "train.py") -> TrainConfig:
    """Return the configuration of a training run from a command line and the recipe it names.

    Raises:
        UserError: an unknown flag or recipe key, or a value out of its limits.
    """
    return parse_run(TrainConfig, argv, prog=prog)


def parse_run(kind: type[Training], argv: Sequence[str], *, prog: str) -> Training:
    """Return a `kind` of TrainConfig; see `parse_train`."""
    # torch.distributed.launch passes the rank, which the environment has, too.
    argv = [word for word in argv if not re.fullmatch(r"--local[-_]rank=\d+", word)]
    # Other processes get the settings: pickle finds no class that was made here.
    typed = values_of(parse(hide(kind, kind.unused), argv, prog=prog))
    config = with_values(kind(), typed)
    given, path = _given_by(argv, config), config.launch.config
    recipe = read_recipe(path) if path is not None else {}
    replaced = pairs_of(config, Replaces)
    for where, names in (("", given), (f"{path}: ", recipe.keys())):
        for pair in replaced:
            if names >= set(pair):
                raise UserError(f"{where}{' and '.join(map(as_flag, pair))}: use one of them")
    hidden = given | {name for name, other in replaced if other in given}
    if "list" in given:  # in place of the recipe's folders
        hidden = hidden | {"images", "masks", "val_images", "val_masks"}
    values = {name: value for name, value in recipe.items() if name not in hidden}
    for name in values:
        if values[name] and settings_of(config)[name].find_notes(Typed):
            raise UserError(f"{path}: {name}: use {as_flag(name)}, or delete the line")
    config, given = with_values(config, values), given | recipe.keys()
    for name, other in replaced:
        if values_of(config)[name] is not None:
            given -= {other}  # the recipe's: a resumed run keeps its plan
    with naming_recipe(path, values.keys()):
        _validate(config)
        config = _in_folder_of_resumed(config)
    check_own_code(values_of(config), given - values.keys())
    return replace(config, given=given, recipe=frozenset(values))


def parse(kind: type[Config], argv: Sequence[str], *, prog: str) -> Config:
    """Return a `kind` of configuration from a command line.

    Raises:
        UserError: what tyro says in a box, in one line; or a number out of its limits.
        SystemExit: after ``--help``.
    """
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            config = tyro.cli(kind, args=argv, prog=prog, config=(tyro.conf.OmitArgPrefixes,))
    except SystemExit:
        if not box.getvalue():
            raise
        said, near = read_box(box.getvalue())
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise UserError(f"{said}; {hint}see {prog} --help") from None
    check_values(config)
    return config


def _given_by(argv: Sequence[str], config: TrainConfig) -> frozenset[str]:
    """Return the names of the settings that `argv` gives."""
    names, given = all_names(config), set()
    for word in argv:
        if word.startswith("-"):
            name = word.split("=")[0].lstrip("-").replace("-", "_")
            name = name if word.startswith("--") else name[:1]  # -e5
            given |= {names[key] for key in (name, name.removeprefix("no_")) if key in names}
    if "images" in given and "masks" not in given:  # a pack, in place of all folders
        given |= {"masks", "list", "val_images", "val_masks"}
    return frozenset(given)


def _in_folder_of_resumed(config: Training) -> Training:
    """Return `config` with the run folder of ``--resume FILE``."""
    if config.launch.resume in (None, "auto"):
        return config
    folder = config.resume_file.parent
    if not is_address(config.launch.resume) and config.resume_file.is_dir():
        raise UserError(
            f"--resume {config.launch.resume}: is a folder; use --resume {config.resume_file / 'last.pt'}"
        )
    if config.run.exp_name is not None and config.place.resolve() != folder.resolve():
        raise UserError(
            f"--resume {config.launch.resume} continues in {folder}: leave --exp-name out, or start "
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
    names = config.to_dict().keys() - names_of(config, Kind.RUN_PLACE) - config.given
    values = {name: value for name, value in saved.items() if name in names and value is not None}
    for name in values.keys() & names_of(config, Kind.DATA_PLACE):
        if is_address(values[name]):  # a stranger's checkpoint must not have it contacted
            raise UserError(
                f"{as_flag(name)}: the run's was {shorten(values[name])}; addresses in a checkpoint "
                "are not opened: give the flag again"
            )
    config = with_values(config, _typed_values(values, "the checkpoint's configuration"))
    _validate(config)
    return config


def save_config(config: TrainConfig, path: Path) -> None:
    """Write `config` as a recipe that starts the same run, --wandb aside; whole or not at all."""
    import yaml

    write_text(path, yaml.safe_dump(config.to_dict(), sort_keys=False))


def read_recipe(path: Path | str) -> dict[str, Any]:
    """Return the settings in a YAML file, or in a recipe of this package, by their names.

    Raises:
        UserError: no YAML file, an unknown key, or a value that its setting can't have.
    """
    names, keys, values = all_names(TrainConfig()), dict[str, str](), {}
    settings = read_settings(path)
    settings.pop("skip_scan", None)  # version 0.1 wrote it into every config.yaml
    for key, value in settings.items():
        name = names.get(key.replace("-", "_").lstrip("_"), "config")
        if name == "config":
            near = difflib.get_close_matches(key[:80], names, n=1)
            hint = f"did you mean {near[0]}?" if near else "see train.py --help"
            raise UserError(f"{path}: unknown key {shorten(key)}; {hint}")
        if name in keys:
            raise UserError(f"{path}: {keys[name]} and {key} are one setting; use one of them")
        keys[name] = key
        if value is not None:
            values[name] = value
    return _typed_values(values, str(path))


def _typed_values(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    settings, typed = settings_of(TrainConfig()), {}
    for name, value in values.items():
        try:
            typed[name] = convert(value, settings[name].hint)
        except (ValueError, OverflowError):
            shown = shorten(value.value if isinstance(value, Scalar) else value)
            raise UserError(
                f"{source}: {name}: {shown} can't be a value of {as_flag(name)}; see train.py --help"
            ) from None
    return typed


# -- settings by name, limits and rules ----------------------------------------------------


def _validate(config: TrainConfig) -> None:
    """Refuse settings that no run can have."""
    check_values(config)
    if config.data.masks is not None and config.data.images is None:  # images alone are a pack
        raise UserError("--images and --masks: use both or neither")
    check_rules(config)


def check_rules(config: object) -> None:
    """Refuse settings that break a rule beside their fields, or the `check` of a class."""
    values = values_of(config).items()
    given = {name for name, value in values if value is not None and value is not False}
    for pair in pairs_of(config, Needs):
        if len(given.intersection(pair)) == 1:
            raise UserError(f"{' and '.join(map(as_flag, pair))}: use both or neither")
    for pair in pairs_of(config, Excludes):
        if given.issuperset(pair):
            raise UserError(f"{' and '.join(map(as_flag, pair))}: use one of them")
    for group in (config, *filter(is_dataclass, vars(config).values())):
        for part in type(group).__mro__:
            vars(part).get("check", id)(group)


def check_values(config: object) -> None:
    """Refuse numbers beyond the limit beside their field, and text that no shell has filled in.

    It is empty, as an unset variable is, or has a ~ that was not expanded.
    """
    for name, setting in settings_of(config).items():
        shown = name if tyro.conf.Positional in setting.notes else as_flag(name)
        values = setting.value if isinstance(setting.value, tuple) else (setting.value,)
        for each in values:
            if each == "" and name != "mask_suffix":  # masks named as their images
                raise UserError(f"{shown} '': is empty; give a value, or leave it out")
            if isinstance(each, str) and re.match(r"~(/|$)", each):
                raise UserError(f"{shown} {each}: ~ was not expanded; write the folder in full")
            limits = [_COUNTABLE] if isinstance(each, int) else []
            for limit in [*setting.find_notes(Limit), *limits]:
                if isinstance(each, (int, float)) and each not in limit:
                    text = " ".join(map(shorten, values))
                    raise UserError(f"{shown} {text}: must be {limit}")
