"""Classes of polygons, from the values of an attribute."""

from __future__ import annotations

import math
import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import MaskValues, choose_labels
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.readers.bands import MOST_PLANES
from unet_ddp.errors import UserError, count_of, join_some
from unet_ddp.extras.polygons.burnt_mask import BurntMask
from unet_ddp.extras.polygons.layers import Features, Layer
from unet_ddp.extras.polygons.polygon_kind import BURNT

BACKGROUND = "background"
"""Name of value 0, which polygons may have, too."""

_MOST = 65535  # of a mask's value
_SHOWN = 12  # fields or classes in a message

Class = str | int | None
"""A text, a whole number, or None for a feature that has none."""
Names = tuple[int, tuple[str, ...]]
"""The digest of the classes in a file, 0 where numbers are mask values; the names of all, if there are others."""


def name_layers(
    layers: Iterable[Layer], config: DataConfig, known: Sequence[str]
) -> dict[Path, Names]:
    """Return by which names the polygons of each file are burnt; classes of `known` names keep their values.

    Raises:
        UserError: a value is no class, or they are too many, or not those that are known already.
    """
    field, overlap, ignore = config.class_field, config.overlap, config.ignore_index
    found = {layer.path: _list_classes(layer, field, ignore) for layer in layers}
    paths = {value: path for path, values in found.items() for value in values}
    kinds = {type(value): path for value, path in paths.items()}
    if len(kinds) > 1:
        raise UserError(
            f"--class-field {field}: texts in {kinds[str]}, numbers in {kinds[int]}; use one kind"
        )
    if not overlap and str not in kinds:
        return dict.fromkeys(found, (0, ()))
    names = _name(paths)
    most = MOST_PLANES if overlap else IGNORE_ID - 1
    if len(names) > most:
        raise UserError(
            f"--class-field {field}: {len(names)} classes ({join_some(names, 3)}); at most {most} are possible: "
            "choose another field"
        )
    if not overlap and ignore is not None and ignore <= len(names):
        raise UserError(
            f"--ignore-index {ignore}: the classes of {field} have the values 1 to {len(names)}; use "
            f"--ignore-index {IGNORE_ID}"
        )
    names = tuple(name for name in known if name != BACKGROUND) or names
    for value, path in paths.items():
        if str(value) not in names:
            raise UserError(
                f"{path}: {field} {str(value)!r} is no class of the training data, which are: "
                f"{join_some(names, _SHOWN)}; correct it, or train a new network"
            )
    own = {path: _name(values) for path, values in found.items()}
    return {path: (_digest(each), () if each == names else names) for path, each in own.items()}


def _name(classes: Iterable[Class]) -> tuple[str, ...]:
    """Return the names of classes, sorted: numbers as these."""
    return (*map(str, sorted(classes, key=lambda value: (isinstance(value, str), value))),)


def _digest(names: tuple[str, ...]) -> int:
    return zlib.crc32(ascii(names).encode())


def list_names(layer: Layer, mask: BurntMask) -> tuple[str, ...]:
    """Return the names of all classes; none of numbers.

    Raises:
        UserError: the classes in the file are others than for `name_layers`.
    """
    if not mask.digest:
        return ()
    own = _name(_list_classes(layer, mask.class_field, mask.ignore))
    if _digest(own) != mask.digest:
        raise UserError(f"{layer.path}: changed while it was read; start again")
    return mask.names or own


def find_codes(layer: Layer, features: Features, mask: BurntMask) -> NDArray[np.int32]:
    """Return the mask value of each feature; where classes overlap, its bit from 1 on."""
    lacking = MOST_PLANES + 1 if mask.overlap else mask.ignore
    known = {name: k for k, name in enumerate(list_names(layer, mask), 1)} | {BACKGROUND: 0}
    classes = _read_classes(layer, features, mask.class_field)
    codes = [lacking if value is None else known.get(str(value), value) for value in classes]
    return np.array(codes, np.int32)


@cache  # of small sets
def _list_classes(layer: Layer, field: str | None, ignore: int | None) -> frozenset[Class]:
    """Return the different classes in a file, without the background.

    Raises:
        UserError: there is no such field, or a feature has no value and no value to ignore is named.
    """
    if field is None or not layer.count:  # such a GeoJSON has no fields
        return frozenset()
    if field not in layer.fields:
        shown = join_some(sorted(layer.fields), _SHOWN) or "none"
        raise UserError(f"{layer.path}: has no field {field!r}; its fields: {shown}")
    features = layer.find(None, field, has_geometry=False)
    classes = _read_classes(layer, features, field)
    if None in classes and ignore is None:
        raise UserError(
            f"{layer.path}: {count_of(classes.count(None), 'feature')} without a value of {field}, first feature "
            f"{features.ids[classes.index(None)]}; give them a class, or ignore their areas with --ignore-index "
            f"{IGNORE_ID}"
        )
    return frozenset(classes) - {None, BACKGROUND}


def _read_classes(layer: Layer, features: Features, field: str | None) -> list[Class]:
    """Return the class of each feature; a value that is none is a UserError."""
    found: list[Class] = []
    for number, value in zip(features.ids, features.values.tolist(), strict=True):
        match value:
            case str():
                found.append(unicodedata.normalize("NFC", value.strip()) or None)
            case float() if math.isnan(value):
                found.append(None)
            case int() | float() if 0 <= value <= _MOST and value == int(value):
                found.append(int(value))
            case None:
                found.append(None)
            case _:
                raise UserError(
                    f"{layer.path}: {field} of feature {number} is {value}; a class is a text, or a whole number from "
                    f"0 to {_MOST}"
                )
    return found


def name_classes(masks: MaskValues, config: DataConfig) -> Labels:
    """Return the background and the classes of texts by name, or a class for each number that occurs.

    Raises:
        UserError: --class-names or --classes says something else.
    """
    examples, field = [*masks.examples.values()], config.class_field
    if not any(BURNT in example for example in examples):
        raise UserError(
            f"--class-field {field}: is for masks that are polygons, {examples[0]} is none; leave it out"
        )
    if not masks.names:
        return choose_labels(masks, replace(config, class_field=None))
    names = (BACKGROUND, *masks.names)
    if config.class_names is not None or config.classes not in (None, len(names)):
        raise UserError(
            f"--class-field {field}: the {len(names)} classes are {BACKGROUND} and its texts, "
            f"{join_some(masks.names, _SHOWN)}; leave --class-names and --classes out"
        )
    return Labels(tuple(range(len(names))), ignore=config.ignore_index, names=names)
