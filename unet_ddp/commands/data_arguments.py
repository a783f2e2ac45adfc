"""Images and masks that Python gives as objects: as the path of an object in a module, or as files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from unet_ddp.cli.python import describe
from unet_ddp.errors import UserError, print_lines
from unet_ddp.extras.arrays.item_kind import GIVEN, OPENED
from unet_ddp.plugins.own import path_of

if TYPE_CHECKING:
    from unet_ddp.extras.arrays.items import Items

SIDES = (("images", "masks"), ("val_images", "val_masks"))


def without_objects(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with any folder in place of data that are objects."""
    found = dict(settings)
    for images, masks in SIDES:
        if _is_object(found.get(images)):
            found |= {images: "arrays", masks: "arrays"}
    return found


_given_at_once = RLock()  # data have one name each: threads take turns


@contextmanager
def placing_data(
    settings: Mapping[str, Any], find_folder: Callable[[], Path]
) -> Iterator[dict[str, Any]]:
    """Yield settings with places in place of data that are objects.

    An object of a module, that is no array or list, is named: each process reads it by itself. All else is written
    below the folder, as other processes don't have it and its content may change. After an error it is removed
    unless the run has begun, and with `overwrite` the arrays of earlier runs are.

    Raises:
        UserError: only one of images and masks is an object, or they are no arrays.
    """
    found, kept, new = dict(settings), set[Path](), dict[Path, tuple[str, str]]()
    try:
        for names, images, masks in _find_objects(settings):
            paths = [_find_path(each) for each in (images, images if masks is None else masks)]
            if None in paths:
                from unet_ddp.extras.arrays.item_files import write_items

                folder, line = write_items(_as_items(names, images, masks), find_folder())
                kept.add(folder)
                if line:
                    new[folder] = names
                    if os.environ.get("RANK", "0") == "0":
                        print_lines(line)
                paths = [str(folder / kind) for kind in SIDES[0]]
            found |= dict(zip(names, paths, strict=True))
        yield found
    except UserError as error:
        from unet_ddp.extras.arrays.item_files import remove_unused

        for folder, names in new.items():
            remove_unused(folder)
            _name_items(error, folder, names)
        raise
    if kept and found.get("overwrite") and not found.get("resume"):
        from unet_ddp.extras.arrays.item_files import remove_others

        remove_others(kept)


def _name_items(error: UserError, folder: Path, names: tuple[str, str]) -> None:
    """Put items, as masks[3], into an error in place of their files in `folder`, if it is gone."""
    for kind, name in zip(SIDES[0], names, strict=True):
        if not folder.exists():
            file = rf"{re.escape(str(folder / kind))}/(.+?)\.(?:npy|png)\b"
            error.args = (re.sub(file, rf"{name}[\1]", str(error)),)


@contextmanager
def giving_data(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield settings with names in place of data that are objects, which this process alone can read; paths as text.

    Raises:
        UserError: only one of images and masks is an object.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
    given: dict[str, Items] = {}
    for names, images, masks in _find_objects(settings):
        place = f"the argument {names[0]}"  # as messages name it
        given[place] = _as_items(names, images, masks)
        found |= dict.fromkeys(names, place)
    with _given_at_once:
        GIVEN.update(given)
        try:
            yield found
        finally:
            for name, items in given.items():
                del GIVEN[name]
                OPENED.pop(items.key, None)


def _is_object(value: object) -> bool:
    return value is not None and not isinstance(value, (str, os.PathLike))


def _find_objects(
    settings: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, str], object, object]]:
    """Yield the names of images and masks, and the data, for each pair of settings that are objects."""
    for names in SIDES:
        images, masks = (settings.get(name) for name in names)
        if _is_object(images) or _is_object(masks):
            _check_both(names, images, masks)
            yield names, images, masks


def _check_both(names: tuple[str, str], images: object, masks: object) -> None:
    """Refuse data with a place for their other half."""
    is_missing = not _is_object(images)
    if not is_missing and (masks is None or _is_object(masks)):
        return
    name, other = names[::-1] if is_missing else names
    value, place = (masks, images) if is_missing else (images, masks)
    shown = "is missing" if place is None else f"is {str(place)!r}"
    raise UserError(f"{name}: {describe(value)}, {other} {shown}; give arrays for both, or folders")


def _find_path(value: object) -> str | None:
    """Return the path of an object in a module; None for arrays and lists, which may have changed since."""
    is_plain = isinstance(value, (list, tuple)) or hasattr(value, "__array__")
    return None if is_plain else path_of(value)


def _as_items(names: tuple[str, str], images: object, masks: object) -> Items:
    from unet_ddp.extras.arrays.items import Column, Items

    return Items(Column(names[0], images), None if masks is None else Column(names[1], masks))
