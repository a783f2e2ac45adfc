"""Command lines, recipes and saved settings to configurations; mistakes in one line.

The later wins: the default, the resumed checkpoint, ``--config recipe.yaml``, the command line.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

import tyro

from unet_ddp.config import DATA_PLACES, RUN_PLACES, SAVED_NAMES, TrainConfig
from unet_ddp.errors import Limit, UserError, check_installed, shorten
from unet_ddp.files import is_address, write_text
from unet_ddp.flags import (
    Scalar,
    as_kind,
    check_own_code,
    check_texts,
    convert,
    hide,
    naming_recipe,
    read_box,
    read_settings,
)

Config = TypeVar("Config")
Training = TypeVar("Training", bound=TrainConfig)

_annotations = cache(partial(get_type_hints, include_extras=True))
_COUNTABLE = Limit(-(2**53), 2**53)  # whole numbers
_NEED_EACH_OTHER = (("val_images", "val_masks"), ("folds", "fold"))
_EXCLUDE_EACH_OTHER = (
    ("list", "images"), ("list", "val_images"), ("list", "folds"), ("folds", "val_images"),
    ("binary", "mask_threshold"), ("binary", "palette"), ("mask_threshold", "palette"),
    ("class_names", "palette"), ("binary", "classes"), ("mask_threshold", "classes"),
    ("compile", "checkpointing"), ("resume", "load"), *(("instances", other) for other in (
    "binary", "mask_threshold", "palette", "classes", "invert")),
)  # fmt: skip


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
    config = as_kind(kind, parse(hide(kind, kind.unused), argv, prog=prog))
    given, path = _given_by(argv, config), config.launch.config
    recipe = read_recipe(path) if path is not None else {}
    for where, names in (("", given), (f"{path}: ", recipe.keys())):
        if {"budget", "epochs"} <= names:
            raise UserError(f"{where}--budget and --epochs: use one of them")
    hidden = {*given, "budget"} if "epochs" in given else given
    if "list" in given:  # in place of the recipe's folders
        hidden = hidden | {"images", "masks", "val_images", "val_masks"}
    values = {name: value for name, value in recipe.items() if name not in hidden}
    if values.get("wandb"):
        raise UserError(f"{path}: wandb: use --wandb, or delete the line")
    config, given = with_values(config, values), given | recipe.keys()
    if config.launch.budget is not None:
        given -= {"epochs"}  # the recipe's: a resumed run keeps its plan
    with naming_recipe(path, values.keys()):
        _check_text(config)
        config = _in_folder_of_resumed(config)
        _validate(config)
    check_own_code(config.to_dict(), given - values.keys())  # for tune, too: it types it
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
    _check_text(config)
    check_limits(config)
    return config


def _given_by(argv: Sequence[str], config: TrainConfig) -> frozenset[str]:
    """Return the names of the settings that `argv` gives."""
    names, given = _all_names(config), set()
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
    names = config.to_dict().keys() - RUN_PLACES - config.given
    values = {name: value for name, value in saved.items() if name in names and value is not None}
    for name in values.keys() & DATA_PLACES:
        if is_address(values[name]):  # a stranger's checkpoint must not have it contacted
            raise UserError(
                f"{_as_flag(name)}: the run's was {shorten(values[name])}; addresses in a checkpoint "
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
    names, keys, values = _all_names(TrainConfig()), dict[str, str](), {}
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
    settings, typed = _settings(TrainConfig()), {}
    for name, value in values.items():
        try:
            typed[name] = convert(value, settings[name].type)
        except (ValueError, OverflowError):
            shown = shorten(value.value if isinstance(value, Scalar) else value)
            raise UserError(
                f"{source}: {name}: {shown} can't be a value of {_as_flag(name)}; see train.py --help"
            ) from None
    return typed


# -- settings by name, limits and rules ----------------------------------------------------


def _validate(config: TrainConfig) -> None:
    """Refuse settings that no run can have."""
    check_limits(config)
    values = ((name, setting.value) for name, setting in _settings(config).items())
    given = {name for name, value in values if value is not None and value is not False}
    for pair in _NEED_EACH_OTHER:
        if len(given.intersection(pair)) == 1:
            raise UserError(f"{' and '.join(map(_as_flag, pair))}: use both or neither")
    if "masks" in given and "images" not in given:  # the other way round it is a pack
        raise UserError("--images and --masks: use both or neither")
    for pair in _EXCLUDE_EACH_OTHER:
        if given.issuperset(pair):
            raise UserError(f"{' and '.join(map(_as_flag, pair))}: use one of them")
    data, launch = config.data, config.launch
    config.optimization.check_loss()
    data.check()
    check_texts(data.group_pattern, launch.budget, data.augmentation)
    if launch.resume == "auto" and launch.overwrite:
        raise UserError("--resume continues the run, --overwrite deletes it: use one of them")
    if config.run.wandb:
        check_installed("wandb", "wandb", "--wandb")


def _check_text(config: object) -> None:
    """Refuse text that is empty, as an unset variable is, or has a ~ that no shell has expanded."""
    for name, setting in _settings(config).items():
        values = setting.value if isinstance(setting.value, tuple) else (setting.value,)
        shown = name if tyro.conf.Positional in get_args(setting.type) else _as_flag(name)
        if "" in values and name != "mask_suffix":  # masks named as their images
            raise UserError(f"{shown} '': is empty; give a value, or leave it out")
        for value in values:
            if isinstance(value, str) and (value == "~" or value.startswith("~/")):
                raise UserError(f"{shown} {value}: ~ was not expanded; write the folder in full")


def check_limits(config: object) -> None:
    """Raise a UserError if a number of a configuration is beyond the limit beside its field."""
    for name, setting in _settings(config).items():
        values = setting.value if isinstance(setting.value, tuple) else (setting.value,)
        numbers = [value for value in values if isinstance(value, (int, float))]
        limits = [limit for limit in get_args(setting.type) if isinstance(limit, Limit)]
        limits += [_COUNTABLE] * any(isinstance(number, int) for number in numbers)
        for limit in limits:
            if not all(number in limit for number in numbers):
                shown = " ".join(map(shorten, values))
                raise UserError(f"{_as_flag(name)} {shown}: must be {limit}")


def _as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class _Setting(NamedTuple):
    group: str  # the field of the configuration that contains it; empty for one without groups
    field: str
    type: Any
    value: Any


def _settings(config: Any, group: str = "") -> dict[str, _Setting]:
    """Return the fields of `config` and its groups, by their names in flags and recipes."""
    settings: dict[str, _Setting] = {}
    kind: Any = type(config)
    types = _annotations(kind)
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            settings |= _settings(value, field.name)
        elif field.name not in ("given", "recipe"):
            name = SAVED_NAMES.get(field.name, field.name)
            settings[name] = _Setting(group, field.name, types[field.name], value)
    return settings


def _all_names(config: TrainConfig) -> dict[str, str]:
    """Return the settings' names by all names they have, as learning_rate by l and lr."""
    settings = _settings(config)
    names = {name: name for name in settings}
    for name, setting in settings.items():
        for part in get_args(setting.type):
            names |= {alias.lstrip("-"): name for alias in getattr(part, "aliases", None) or ()}
    return names


def with_values(config: Training, values: Mapping[str, Any]) -> Training:
    """Return `config` with other values of some settings."""
    settings = _settings(config)
    for name, value in values.items():
        group, field, *_ = settings[name]
        config = replace(config, **{group: replace(getattr(config, group), **{field: value})})
    return config
