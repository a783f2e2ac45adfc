"""Classes of polygons, from the values of an attribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.readers.bands import MOST_PLANES
from unet_ddp.errors import UserError, count_of, join_some
from unet_ddp.extras.polygons.burnt_mask import Burning
from unet_ddp.extras.polygons.layers import Layer

BACKGROUND = "background"
"""Name of value 0, which polygons may have, too."""
NO_CLASS = -1
"""Code of a polygon without a class, where classes overlap."""

_MOST = 65535  # of a mask's value
_SHOWN = 12  # fields or classes in a message

Class = str | int | None
"""A text, a whole number, or None for a feature that has none."""


def find_names(layers: Sequence[Layer], burning: Burning) -> tuple[str, ...]:
    """Return the names of the classes in all layers, sorted; none where these are mask values.

    With `overlap`, numbers are names, too.

    Raises:
        UserError: a value is no class, or they are too many, or not those that are known already.
    """
    field = burning.class_field
    found: dict[Class, Layer] = {}
    for layer in layers if field is not None else ():
        if layer.count:
            _check_field(layer, str(field))
            classes = {*_read_classes(layer, *layer.read_values(str(field)), burning)}
            found |= dict.fromkeys(classes - {None, BACKGROUND}, layer)
    texts = sorted(value for value in found if isinstance(value, str))
    numbers = sorted(value for value in found if isinstance(value, int))
    if texts and numbers:
        paths = found[texts[0]].path, found[numbers[0]].path
        raise UserError(
            f"--class-field {field}: texts in {paths[0]}, numbers in {paths[1]}; use one kind"
        )
    names = texts
    if burning.overlap:
        names = texts or [str(number) for number in numbers]
    _check_names(names, burning, has_texts=bool(texts))
    if not names or not burning.names:
        return tuple(names)
    for value, layer in found.items():
        if str(value) not in burning.names:
            known = join_some(burning.names, _SHOWN)
            raise UserError(
                f"{layer.path}: {field} {str(value)!r} is no class of the training data, which are: {known}"
            )
    return burning.names


def _check_field(layer: Layer, field: str) -> None:
    if field not in layer.fields:
        shown = join_some(sorted(layer.fields), _SHOWN) or "none"
        raise UserError(f"{layer.path}: has no field {field!r}; its fields: {shown}")


def _check_names(names: Sequence[str], burning: Burning, *, has_texts: bool) -> None:
    """Refuse too many classes, and a value to ignore that is the value of one."""
    field, ignore = burning.class_field, burning.ignore
    most = MOST_PLANES if burning.overlap else IGNORE_ID - 1
    if len(names) > most:
        raise UserError(
            f"--class-field {field}: {len(names)} classes ({join_some(names, 3)}); at most {most} are possible: "
            "choose another field"
        )
    if has_texts and not burning.overlap and ignore is not None and ignore <= len(names):
        raise UserError(
            f"--ignore-index {ignore}: the classes of {field} have the values 1 to {len(names)}; use "
            f"--ignore-index {IGNORE_ID}"
        )


def find_codes(
    layer: Layer, ids: NDArray[np.int64], values: NDArray[Any], burning: Burning
) -> NDArray[np.int32]:
    """Return the mask value of each feature: a text's is its place among `names`, from 1 on.

    Where classes overlap, a number's is, too, and that of a feature without a class is NO_CLASS.
    """
    if burning.class_field is None or not len(ids):
        return np.ones(len(ids), np.int32)
    classes = _read_classes(layer, ids, values, burning)
    if burning.overlap:
        classes = [value and str(value) for value in classes]
    known: dict[Class, int] = {name: k for k, name in enumerate(burning.names, 1)}
    known |= {value: value for value in classes if isinstance(value, int)}
    known |= {BACKGROUND: 0, None: NO_CLASS}
    if burning.ignore is not None and not burning.overlap:
        known[None] = burning.ignore
    if not known.keys() >= {*classes}:
        raise UserError(f"{layer.path}: changed while it was read; start again")
    return np.array([known[value] for value in classes], np.int32)


def _read_classes(
    layer: Layer, ids: NDArray[np.int64], values: NDArray[Any], burning: Burning
) -> list[Class]:
    """Return the class of each feature.

    Raises:
        UserError: one has none and no value to ignore is named, or another value.
    """
    field, kind = burning.class_field, layer.fields[str(burning.class_field)]
    found: list[Class]
    if all(value is None or isinstance(value, str) for value in values):
        found = [(value or "").strip() or None for value in values]
    elif np.dtype(kind).kind in "biuf":
        numbers = values.astype(np.float64)
        is_class = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers <= _MOST)
        wrong = np.flatnonzero(~is_class & ~np.isnan(numbers))
        if len(wrong):
            raise UserError(
                f"{layer.path}: {field} of feature {ids[wrong[0]]} is {values[wrong[0]]}; a class is a text, or a "
                f"whole number from 0 to {_MOST}"
            )
        found = [int(number) if number >= 0 else None for number in numbers.tolist()]
    else:
        raise UserError(
            f"{layer.path}: field {field} is of type {kind}; classes are texts or whole numbers"
        )
    lacking = [row for row, value in enumerate(found) if value is None]
    if lacking and burning.ignore is None:
        raise UserError(
            f"{layer.path}: {count_of(len(lacking), 'feature')} without a value of {field}, first feature "
            f"{ids[lacking[0]]}; give them a class, or ignore their areas with --ignore-index {IGNORE_ID}"
        )
    return found
