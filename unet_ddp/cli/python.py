"""Settings that Python gives, as words of a command line; each value is refused by its type, in one line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator
from typing import Any, get_args, get_origin

from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError, count_of, shorten
from unet_ddp.plugins.own import path_of
from unet_ddp.settings import Names, as_flag, pairs_of, settings_of

_IMAGES = "use images=, and masks= if its items have no masks"
_MASKS = "use masks="
_ADAMW = "the optimizer is AdamW; use learning_rate=, weight_decay= and clip="
_ELSEWHERE = {
    **dict.fromkeys(("data", "dataset", "train_data", "train_dataset", "train_loader", "dataloader"), _IMAGES),
    **dict.fromkeys(("labels", "targets", "annotations", "train_labels"), _MASKS),
    **dict.fromkeys(("optimizer", "optim", "momentum", "betas"), _ADAMW),
    **dict.fromkeys(("scheduler", "lr_scheduler"), "the learning rate has a warm-up and a cosine; use warmup="),
    **dict.fromkeys(("gpus", "devices", "num_gpus"), "use nproc=, a process for each GPU"),
    **dict.fromkeys(("name", "project", "run_name", "output"), "use exp_name= and checkpoints="),
    **dict.fromkeys(("size", "img_size", "imgsz", "image_size"), "use crop_size= or scale="),
}  # fmt: skip
"""By the names that other programs have, what to use here."""


def to_words(name: str, value: Any, kind: type[Any] = TrainConfig) -> list[str]:
    """Return the words of a command line that give a setting of `train`, or of another class of them.

    Raises:
        UserError: there is no such setting, or a command line can't give such a value.
    """
    (hint, default), flag = _find_setting(name, kind), as_flag(name)
    value = _to_plain(value)
    is_empty = isinstance(value, (list, tuple)) and not value
    if is_empty and default != ():
        raise UserError(f"{name}: {value}; give at least one value, or leave it out")
    if value is None or is_empty or (name == "resume" and value is False):  # it may also be a file
        return []
    if isinstance(value, bool):
        if bool not in _parts(hint) and name != "resume":
            raise UserError(f"{name}: {value}; expected {_describe_kinds(hint)}")
        return [flag if value else as_flag(f"no_{name}")]
    if bool in _parts(hint):
        raise UserError(f"{name}: {shorten(value)}; expected True or False")
    if not isinstance(value, (list, tuple)):
        return [f"{flag}={_to_text(name, value, kind)}"]
    words = [_to_text(name, _to_plain(item), kind) for item in value]
    if not any(get_origin(part) is tuple for part in _parts(hint)):
        raise UserError(f"{name}: {describe(value)}; give one, as on the command line")
    return [flag, *words]


def refuse_twice(names: Collection[str]) -> None:
    """Refuse two names of one setting, as lr and learning_rate."""
    for each in settings_of(TrainConfig).values():
        twice = [n for n in names if n.replace("-", "_").removeprefix("no_") in each.names]
        if len(twice) > 1:
            raise UserError(f"{' and '.join(twice)}: are one setting; use one of them")


def _find_setting(name: str, kind: type[Any]) -> tuple[Any, Any]:
    """Return the type of a setting, and its default."""
    settings = settings_of(kind)
    plain = name.removeprefix("no_")
    for each in settings.values():
        if not {name, plain}.isdisjoint(each.names):
            return each.hint, each.default
    if plain == "amp":  # --amp and --no-amp stand for values of --precision
        return bool, True
    near = difflib.get_close_matches(name, settings, n=1, cutoff=0.75)
    hint = _ELSEWHERE.get(name, "help(unet_ddp.train) has them all")
    if near:
        hint = f"did you mean {near[0]}?"
    raise UserError(f"{name}: train() has no such setting; {hint}")


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from _parts(part)


def _describe_kinds(hint: object) -> str:
    """Return the kinds of values that a setting takes, in words."""
    parts = [*_parts(hint)]
    of = "numbers" if any(get_origin(part) is tuple for part in parts) else "a number"
    names = {int: of, float: of, str: "text or a path"}
    words = [names[part] for part in parts if part in names]
    words += [part for part in parts if isinstance(part, str)]  # as "auto"
    *others, last = dict.fromkeys(words)
    return " or ".join([", ".join(others), last] if others else [last])


def _to_plain(value: Any) -> Any:
    """Return a number, or a list of numbers, of NumPy or torch as Python's own."""
    is_array = hasattr(value, "tolist") and hasattr(value, "ndim")
    return value.tolist() if is_array and value.ndim <= 1 else value


def _to_text(name: str, value: Any, kind: type[Any]) -> str:
    """Return a value as it is typed; of an object its import path."""
    if isinstance(value, (str, int, float, os.PathLike)):
        return str(os.fspath(value) if isinstance(value, os.PathLike) else value)
    is_part = name in {part for part, _ in pairs_of(kind, Names)}
    is_array = hasattr(value, "shape")
    if name == "model" and is_part and hasattr(value, "state_dict") and not isinstance(value, type):
        raise UserError(
            f"model: {describe(value)}, whose weights are made; give the class, or a function in a file, "
            'that makes it for a number of channels and classes, e.g. model="parts:make"'
        )
    path = path_of(value) if is_part and not is_array else None
    if path is not None:
        return path
    if is_part and not is_array and not isinstance(value, (list, tuple, dict, set)):
        last = getattr(value, "__qualname__", "NAME").split(".")[-1]
        last = last if last.isidentifier() else "NAME"
        advice = (
            "other processes can't import it from here; write it into a file, in a notebook by a cell "
            f'that begins with %%writefile parts.py, and use {name}="parts:{last}"'
        )
    else:
        advice = "give a number, text or a path, as on the command line"
    raise UserError(f"{name}: {describe(value)}; {advice}")


def describe(value: Any) -> str:
    """Return what a value is, in a few words: its text may have pages."""
    kind = type(value).__name__
    if hasattr(value, "shape"):
        return f"an array {tuple(value.shape)}"
    if isinstance(value, (list, tuple, dict, set)):
        return f"a {kind} of {count_of(len(value), 'value')}"
    if hasattr(value, "__qualname__"):
        kind = "class" if isinstance(value, type) else "function"
        return f"{kind} {value.__qualname__}"
    return f"an object of type {kind}"
