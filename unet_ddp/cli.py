"""Command lines and recipes to configurations; what is wrong with them in one line.

A value comes, the later winning, from: the default, the checkpoint that is resumed,
``--config recipe.yaml``, the command line.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import tyro
import yaml

from unet_ddp.config import (
    DataConfig,
    DoctorConfig,
    EvaluateConfig,
    Plain,
    PredictConfig,
    TrainConfig,
    settings,
)
from unet_ddp.errors import UserError

Settings = TypeVar("Settings")
Training = TypeVar("Training", bound=TrainConfig)


def parse_train(
    argv: Sequence[str] | None = None, *, resumed: Mapping[str, Plain] | None = None
) -> TrainConfig:
    """The configuration of a training run, from the command line and what it points to.

    Args:
        argv: the words after ``train.py``; those of this process when absent.
        resumed: the settings in the checkpoint that is resumed, which the command line changes.

    Raises:
        UserError: an unknown flag or key, or a value that can't be, by its name.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # torch.distributed.launch passes the rank, which the environment also holds.
    words = [word for word in words if not re.fullmatch(r"--local[-_]rank=\d+", word)]
    known = _names(TrainConfig) - {"checkpoints", "exp_name", "load"}
    kept = {name: value for name, value in (resumed or {}).items() if name in known}
    config = _in_its_folder(_with_recipe(TrainConfig, words, kept, prog="train.py"))
    validate(config)
    return config


def parse_doctor(argv: Sequence[str]) -> DoctorConfig:
    """The configuration of the doctor, from its command line, which is train.py's.

    Raises:
        UserError: an unknown flag or key, or a value that can't be, by its name.
    """
    config = _with_recipe(DoctorConfig, argv, {}, prog="python -m unet_ddp doctor")
    validate(config)
    return config


def _with_recipe(
    kind: type[Training], words: Sequence[str], kept: Mapping[str, Plain], *, prog: str
) -> Training:
    """A configuration from the defaults, what is kept, the recipe and the command line."""
    config = parse(kind, words, prog=prog)
    recipe = _read_settings(Path(config.launch.config)) if config.launch.config else {}
    if not kept and not recipe:
        return config
    return parse(kind, [*_as_words(kept), *_as_words(recipe), *words], prog=prog)


def parse_evaluate(words: Sequence[str]) -> EvaluateConfig:
    """The configuration of an evaluation.

    Raises:
        UserError: an unknown flag, or a value that can't be, by its name.
    """
    config = parse(EvaluateConfig, words, prog="python -m unet_ddp evaluate")
    limits = [
        (
            "--threshold",
            config.threshold,
            config.threshold is None or 0 < config.threshold < 1,
            "above 0 and below 1",
        ),
        ("--tolerance", config.tolerance, (config.tolerance or 0) >= 0, "0 or more pixels"),
        ("--nproc", config.nproc, config.nproc >= 1, "1 or more"),
        ("--workers", config.workers, (config.workers or 0) >= 0, "0 or more"),
        ("--timeout", config.timeout, config.timeout > 0, "above 0"),
    ]
    for flag, value, sound, allowed in limits:
        if not sound:
            raise UserError(f"{flag} {value}: must be {allowed}")
    if config.nproc > 1 and "LOCAL_RANK" in os.environ:
        raise UserError("--nproc under torchrun: it starts the processes; leave --nproc out")
    if (config.images is None) != (config.masks is None):
        given, other = ("--images", "--masks") if config.images else ("--masks", "--images")
        raise UserError(f"{given} is given without {other}: give both folders")
    return config


def _in_its_folder(config: TrainConfig) -> TrainConfig:
    """A run that goes on from a file stays in that file's folder."""
    if config.launch.resume in (None, "auto"):
        return config
    folder = Path(str(config.launch.resume)).parent
    if config.run.exp_name is not None and config.folder.resolve() != folder.resolve():
        raise UserError(
            f"--resume {config.launch.resume} goes on in {folder}: leave --exp-name out, or begin "
            "a new run from these weights by --load"
        )
    return replace(config, run=replace(config.run, checkpoints=str(folder), exp_name=None))


def parse(kind: type[Settings], words: Sequence[str], *, prog: str) -> Settings:
    """An instance of `kind` from command-line words; what tyro has to say becomes one line."""
    anything: Any = kind
    parsed: Settings = _parse(anything, tuple(words), prog)
    return parsed


@lru_cache(maxsize=16)  # a run asks more than once, and it takes a tenth of a second
def _parse(kind: Any, words: tuple[str, ...], prog: str) -> Any:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, args=words, prog=prog, config=(tyro.conf.OmitArgPrefixes,))
    except SystemExit as stop:
        if stop.code in (0, None):
            raise  # --help
        raise UserError(f"{_one_line(said.getvalue())}; see {prog} --help") from None


def _one_line(box: str) -> str:
    """The message in one of tyro's boxes: its text up to the first rule, frame taken off."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│╭╮╰╯ ") for line in box.splitlines()]
    message: list[str] = []
    for line in lines:
        if re.fullmatch(r"─+", line) and message:
            break
        if line and "─" not in line:
            message.append(line)
    return " ".join(message) or "the command line can't be read"


def save_settings(config: TrainConfig, path: Path) -> None:
    """Write `config` as a recipe that starts the same run; whole or not at all."""
    half = path.with_name(path.name + ".tmp")
    half.write_text(yaml.safe_dump(settings(config), sort_keys=False), encoding="utf-8")
    half.replace(path)


def _names(kind: type) -> set[str]:
    names = set()
    for item in fields(kind):
        factory = item.default_factory
        if isinstance(factory, type) and is_dataclass(factory):
            names |= _names(factory)
        else:
            names.add(item.name)
    return names


def _read_settings(path: Path) -> dict[str, Plain]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; --config takes a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = " ".join(str(error).split())
        raise UserError(f"{path}: no YAML file: {where}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: a recipe is lines of 'name: value', named as the flags are")
    known = _names(TrainConfig)
    recipe: dict[str, Plain] = {}
    for key, value in loaded.items():
        name = str(key).replace("-", "_").lstrip("_")
        name = "learning_rate" if name == "lr" else name
        if name not in known or name == "config":
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; see train.py --help"
            raise UserError(f"{path}: unknown key {key!r}{hint}")
        if isinstance(value, Mapping):
            raise UserError(f"{path}: {key} takes a value or a list, not a table of {len(value)}")
        recipe[name] = value
    return recipe


def _as_words(values: Mapping[str, Plain]) -> list[str]:
    """A recipe as command-line words, so that its values are read and checked as flags are."""
    words: list[str] = []
    for name, value in values.items():
        flag = _as_flag(name)
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        else:
            words.append(f"{flag}={value}")  # one word, for a value may begin with a dash
    return words


def parse_predict(words: Sequence[str]) -> PredictConfig:
    """The configuration of a prediction.

    ``--model a.pt b.pt photo.jpg`` takes two models: what can be none is an image.

    Raises:
        UserError: an unknown flag, or a value that can't be, by its name.
    """
    config = parse(PredictConfig, words, prog="predict.py")
    given = config.model
    count = next((n for n, name in enumerate(given) if n and not _is_model(name)), len(given))
    config = replace(config, model=given[:count], inputs=(*config.inputs, *given[count:]))
    for flag, value in (("--batch-size", config.batch_size), ("--workers", config.workers)):
        if value is not None and value < 1:
            raise UserError(f"{flag} {value}: must be 1 or more")
    if config.overwrite and config.skip_existing:
        raise UserError("--overwrite replaces what is there, --skip-existing leaves it: give one")
    return config


def _is_model(name: str) -> bool:
    path = Path(name)
    return (path / "best.pt").exists() or path.suffix.lower() in (".pt", ".pth", ".onnx", ".ckpt")


# -- values that can't be ----------------------------------------------------------------


def validate(config: TrainConfig) -> None:
    """Refuse what no run could do.

    Raises:
        UserError: naming the flag, the value and what it may be.
    """
    for flag, value, sound, allowed in _limits(config):
        if not sound:
            raise UserError(f"{flag} {value}: must be {allowed}")
    data, optimization, launch = config.data, config.optimization, config.launch
    weights = (optimization.dice_weight, optimization.cross_entropy_weight)
    if min(weights) < 0 or max(weights) == 0:
        raise UserError("--dice-weight and --cross-entropy-weight: neither below 0, one above it")
    if optimization.class_weights and min(optimization.class_weights) < 0:
        raise UserError(f"--class-weights {optimization.class_weights}: none may be below 0")
    _check_data(data)
    if launch.resume and launch.overwrite and launch.resume == "auto":
        raise UserError("--resume continues the run, --overwrite deletes it: give one of them")
    if launch.resume and config.run.load:
        raise UserError("--resume and --load: a resumed run has its weights already; give one")
    if optimization.compile and config.network.checkpointing:
        raise UserError("--compile and --checkpointing: torch can't compile it; give one of them")
    if config.run.wandb and importlib.util.find_spec("wandb") is None:
        raise UserError(
            "--wandb: not installed; pip install 'unet-ddp[wandb]', or leave the flag out"
        )


def _check_data(data: DataConfig) -> None:
    """Flags that need each other, or exclude each other."""
    for one, other in (("images", "masks"), ("val_images", "val_masks"), ("folds", "fold")):
        values = getattr(data, one), getattr(data, other)
        if (values[0] is None) != (values[1] is None):
            given, missing = (one, other) if values[1] is None else (other, one)
            raise UserError(f"{_as_flag(given)} is given without {_as_flag(missing)}: give both")
    for one, other in (
        ("list", "images"), ("list", "val_images"), ("list", "folds"), ("folds", "val_images"),
        ("binary", "mask_threshold"), ("binary", "palette"), ("mask_threshold", "palette"),
        ("class_names", "palette"), ("binary", "classes"), ("mask_threshold", "classes"),
    ):  # fmt: skip
        if getattr(data, one) not in (None, False) and getattr(data, other) is not None:
            raise UserError(f"{_as_flag(one)} and {_as_flag(other)}: give one of them")
    if data.folds and data.fold and not (data.folds >= 2 and 1 <= data.fold <= data.folds):
        raise UserError(f"--folds {data.folds} --fold {data.fold}: K is 2 or more, I from 1 to K")
    if data.group_pattern is not None:
        _check_pattern(data.group_pattern)


def _as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _limits(config: TrainConfig) -> list[tuple[str, object, bool, str]]:
    """Flag, value, whether it can be, and what it may be."""
    data, optimization, launch = config.data, config.optimization, config.launch
    return [
        ("--scale", data.scale, 0 < data.scale <= 1, "above 0 and at most 1"),
        ("--validation", data.validation, 0 <= data.validation < 100, "0 or more and below 100"),
        ("--classes", data.classes, data.classes is None or 2 <= data.classes <= 255,
         "2 to 255; the background is one of them"),
        ("--channels", data.channels, data.channels is None or data.channels >= 1, "1 or more"),
        ("--mask-threshold", data.mask_threshold, data.mask_threshold is None or data.mask_threshold >= 0, "0 or more"),
        ("--skip-bad-files", launch.skip_bad_files, launch.skip_bad_files >= 0, "0 or more"),
        ("--crop-size", data.crop_size, data.crop_size is None or min(data.crop_size) >= 16,
         "two sides of 16 or more pixels"),
        ("--width", config.network.width, config.network.width >= 1, "1 or more"),
        ("--epochs", optimization.epochs, optimization.epochs >= 1, "1 or more"),
        ("--batch-size", optimization.batch_size, optimization.batch_size == "auto" or optimization.batch_size >= 1, "1 or more, or auto"),
        ("--accumulate", optimization.accumulate, optimization.accumulate >= 1, "1 or more"),
        ("--images-per-step", optimization.images_per_step, optimization.images_per_step is None or optimization.images_per_step >= 1, "1 or more"),
        ("--learning-rate", optimization.learning_rate, optimization.learning_rate > 0, "above 0"),
        ("--warmup", optimization.warmup, 0 <= optimization.warmup < 100, "0 or more and below 100"),
        ("--weight-decay", optimization.weight_decay, optimization.weight_decay >= 0, "0 or more"),
        ("--clip", optimization.clip, optimization.clip >= 0, "0 or more"),
        ("--seed", optimization.seed, optimization.seed >= 0, "0 or more"),
        ("--ema", optimization.ema, 0 <= optimization.ema < 1, "0 or more and below 1"),
        ("--save-every", config.run.save_every, config.run.save_every >= 0, "0 or more"),
        ("--save-every-steps", config.run.save_every_steps, config.run.save_every_steps >= 0, "0 or more"),
        ("--save-every-minutes", config.run.save_every_minutes, config.run.save_every_minutes >= 0, "0 or more"),
        ("--max-bad-steps", launch.max_bad_steps, launch.max_bad_steps >= 1, "1 or more"),
        ("--nproc", launch.nproc, launch.nproc >= 1, "1 or more"),
        ("--workers", launch.workers, launch.workers is None or launch.workers >= 0, "0 or more"),
        ("--cache-limit", launch.cache_limit, launch.cache_limit is None or launch.cache_limit > 0, "above 0"),
        ("--max-steps", launch.max_steps, launch.max_steps is None or launch.max_steps >= 1, "1 or more"),
        ("--timeout", launch.timeout, launch.timeout > 0, "above 0"),
    ]  # fmt: skip


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise UserError(f"--group-pattern {pattern!r}: no regular expression: {error}") from None
    if groups < 1:
        raise UserError(
            f"--group-pattern {pattern!r}: needs a bracket around what names the group, as in '(.+)_'"
        )
