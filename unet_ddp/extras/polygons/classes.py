"""Classes of polygons, from the values of an attribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.burning import Burning
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.readers.bands import MOST_PLANES
from unet_ddp.errors import UserError, count_of, join_some
from unet_ddp.extras.polygons.layers import Layer

BACKGROUND = "background"
"""Name of value 0, which polygons may have, too."""
NO_CLASS = -1
"""Code of a polygon without a class, where classes overlap."""

_MOST = 65535  # of a mask's value
_SHOWN = 12  # fields or classes in a message


def find_names(layers: Sequence[Layer], burning: Burning) -> tuple[str, ...]:
    """Return the names of the classes in all layers, sorted; none where these are mask values.

    With `overlap`, numbers are names, too.

    Raises:
        UserError: a value is no class, or they are too many, or not those that are known already.
    """
    field = burning.class_field
    if field is None:
        return ()
    found: dict[str | int, Layer] = {}
    for layer in layers:
        if not layer.count:
            continue
        if field not in layer.fields:
            shown = join_some(sorted(layer.fields), _SHOWN) or "none"
            raise UserError(f"{layer.path}: has no field {field!r}; its fields: {shown}")
        for value in {*_read_classes(layer, *layer.read_values(field), burning)} - {
            None,
            BACKGROUND,
        }:
            found.setdefault(value, layer)
    texts = sorted(value for value in found if isinstance(value, str))
    numbers = sorted(value for value in found if isinstance(value, int))
    if texts and numbers:
        text, number = found[texts[0]].path, found[numbers[0]].path
        raise UserError(
            f"--class-field {field}: has texts in {text}, numbers in {number}; use one kind"
        )
    names = texts or ([str(number) for number in numbers] if burning.overlap else [])
    most = MOST_PLANES if burning.overlap else IGNORE_ID - 1
    if len(names) > most:
        raise UserError(
            f"--class-field {field}: {len(names)} classes ({join_some(names, 3)}); at most {most} are possible: "
            "choose another field"
        )
    ignore = burning.ignore
    if texts and not burning.overlap and ignore is not None and ignore <= len(names):
        raise UserError(
            f"--ignore-index {ignore}: the {len(names)} classes of {field} have the values 1 to {len(names)}; use "
            f"--ignore-index {IGNORE_ID}"
        )
    for name in names if burning.names else ():
        if name not in burning.names:
            path = next(layer.path for value, layer in found.items() if str(value) == name)
            known = join_some(burning.names, _SHOWN)
            raise UserError(
                f"{path}: {field} {name!r} is no class of the training data, which are: {known}"
            )
    return burning.names if burning.names and names else tuple(names)


def find_codes(
    layer: Layer, ids: NDArray[np.int64], values: NDArray[Any], burning: Burning
) -> NDArray[np.int32]:
    """Return the mask value of each feature: a text's is its place among `names`, from 1 on.

    Where classes overlap, a number's is, too, and that of a feature without a class is NO_CLASS.
    """
    if burning.class_field is None or not len(ids):
        return np.ones(len(ids), np.int32)
    known: dict[str | int | None, int] = {name: k for k, name in enumerate(burning.names, 1)}
    known |= {BACKGROUND: 0, None: NO_CLASS}
    if not burning.overlap and burning.ignore is not None:
        known[None] = burning.ignore
    codes = []
    for value in _read_classes(layer, ids, values, burning):
        is_value = isinstance(value, int) and not burning.overlap
        code = value if is_value else known.get(str(value) if isinstance(value, int) else value)
        if not isinstance(code, int):
            raise UserError(f"{layer.path}: changed while it was read; start again")
        codes.append(code)
    return np.array(codes, np.int32)


def _read_classes(
    layer: Layer, ids: NDArray[np.int64], values: NDArray[Any], burning: Burning
) -> list[str | int | None]:
    """Return the class of each feature: a text, a whole number, or None if it has none.

    Raises:
        UserError: one has none and no value to ignore is named, or another value.
    """
    field, kind = burning.class_field, layer.fields[str(burning.class_field)]
    found: list[str | int | None]
    if kind == "text":
        found = [str(value or "").strip() or None for value in values.tolist()]
    elif np.dtype(kind).kind in "biuf":
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
        least, most = (0, _MOST) if not burning.overlap else (-_MOST, _MOST)
        numbers = np.where(missing, 0, values)
        wrong = np.flatnonzero(
            (numbers != np.floor(numbers)) | (numbers < least) | (numbers > most)
        )
        if len(wrong):
            raise UserError(
                f"{layer.path}: {field} of feature {ids[wrong[0]]} is {values[wrong[0]]}; a class is a text, or a "
                f"whole number from {least} to {most}"
            )
        found = [
            None if gone else int(n) for gone, n in zip(missing, numbers.tolist(), strict=True)
        ]
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
