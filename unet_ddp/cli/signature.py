"""The settings of `train` as the parameters of a function, for editors, `help` and a notebook's completion."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, Signature
from os import PathLike
from typing import Any, Protocol, get_args, get_origin

from unet_ddp.config import TrainConfig
from unet_ddp.settings import Kind, Names, Setting, names_of, pairs_of, settings_of

DATA = ("images", "masks", "val_images", "val_masks")
"""Settings that may also be arrays or a data set."""


class Items(Protocol):
    """A sequence of arrays, or of (name, image, mask), e.g. a list, an array (N, H, W, C) or a data set."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> object: ...


Data = str | PathLike[str] | Items | None
"""Images or masks: a folder, arrays, or a data set."""


def sign(result: object) -> Signature:
    """Return the signature of `train`, whose result is of this type: each setting with type and default."""
    found = []
    for name, setting in settings_of(TrainConfig).items():
        hint = _find_type(name, setting)
        found.append(_parameter(name, hint, setting.default))
        for alias in setting.names[1:]:
            if len(alias) > 1:
                found.append(_parameter(alias, hint | None, None))
    found.append(_parameter("amp", bool | None, None))
    return Signature(found, return_annotation=result)


def _parameter(name: str, hint: object, default: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _find_type(name: str, setting: Setting) -> Any:
    """Return the type of the values that Python gives for a setting."""
    hint = setting.hint
    if hasattr(hint, "__metadata__"):
        hint = get_args(hint)[0]
    if name in {part for part, _ in pairs_of(TrainConfig, Names)}:
        return object
    if name in DATA:
        return Data
    if name == "resume":
        return bool | str | PathLike[str] | None
    is_place = name in names_of(TrainConfig, Kind.DATA_PLACE, Kind.RUN_PLACE)
    if is_place and hint is not bool and name != "exp_name":
        return str | PathLike[str] if hint is str else str | PathLike[str] | None
    for part in (hint, *get_args(hint)):
        if get_origin(part) is tuple:  # a list will do
            sequence: Any = Sequence
            items = sequence[get_args(part)[0]]
            return items if part is hint else items | None
    return hint
