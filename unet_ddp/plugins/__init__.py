"""Parts that the core finds by name: it imports none of them, and each is imported when it is named.

`built_in` has the parts of this package.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from unet_ddp.errors import UserError, shorten, words_of
from unet_ddp.plugins.built_in import BUILT_IN
from unet_ddp.plugins.own import import_own, texts_of

if TYPE_CHECKING:
    from unet_ddp.data.labels import Labels
    from unet_ddp.data.pairs import PairKind
    from unet_ddp.data.readers.base import OpenFile
    from unet_ddp.plugins.built_in.commands import Command
    from unet_ddp.plugins.built_in.of_data import LabelRule, MakeHead
    from unet_ddp.plugins.built_in.of_prediction import MakeOutput, OpenBackend
    from unet_ddp.plugins.built_in.of_training import MakeFactors, MakeTerm, Planner
    from unet_ddp.storage import Storage

Made = TypeVar("Made")
_OBJECTS = {"outputs", "pairs", "settings"}  # points whose parts may be made already


@overload
def find(point: Literal["labels"], name: str) -> type[Labels]: ...
@overload
def find(point: Literal["heads"], name: str) -> MakeHead: ...
@overload
def find(point: Literal["readers"], name: str) -> type[OpenFile]: ...
@overload
def find(point: Literal["pairs"], name: str) -> type[PairKind]: ...
@overload
def find(point: Literal["storage"], name: str) -> type[Storage]: ...
@overload
def find(point: Literal["label_rules"], name: str) -> LabelRule: ...
@overload
def find(point: Literal["planners"], name: str) -> Planner: ...
@overload
def find(point: Literal["losses"], name: str) -> MakeTerm: ...
@overload
def find(point: Literal["pixel_factors"], name: str) -> MakeFactors: ...
@overload
def find(point: Literal["backends"], name: str) -> OpenBackend: ...
@overload
def find(point: Literal["outputs"], name: str) -> MakeOutput: ...
@overload
def find(point: Literal["commands"], name: str) -> Command: ...
@overload
def find(point: str, name: str) -> Any: ...
def find(point: str, name: str) -> Any:
    """Return the part `name` of a point: built in, of an installed package, or at `module:attribute`.

    A package names it by an entry point of the group `unet_ddp.<point>`; then the working folder is not searched
    for it. A `module` may be there.

    Raises:
        UserError: it can't be imported or called, or there is none of that name.
    """
    if name in BUILT_IN[point]:
        return BUILT_IN[point][name]()
    path = _find_path(point, name)
    if not path:
        raise UserError(
            f"{name}: no installed package has it for unet_ddp.{point}; use MODULE:NAME"
        )
    module, _, attribute = path.partition(":")
    try:
        part = getattr(import_own(module, looks_here=":" in name), attribute)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {words_of(error)}"  # of code that is not ours
        raise UserError(f"{name}: can't be imported ({reason}); fix it, or name another") from None
    if point not in _OBJECTS and not callable(part):
        raise UserError(f"{name}: is {shorten(part)}; name a class or a function")
    return part


def make(point: str, name: str, flag: str, kind: type[Made], *values: object) -> Made:
    """Return the object of a class `kind` that a part makes of these values.

    Raises:
        UserError: it can't be imported, is another class or function, or takes other values; it begins with the `flag`.
    """
    part = find(point, name)
    base = f"{kind.__module__}.{kind.__name__}"
    can_make = issubclass(part, kind) if isinstance(part, type) else callable(part)
    if can_make:
        takes = inspect.signature(part)
        try:
            takes.bind(*values)
        except TypeError:
            raise UserError(
                f"{flag}: takes {takes}, and is given {len(values)} values; derive a class from {base}, which "
                "takes them"
            ) from None
    made = part(*values) if can_make else part
    if not isinstance(made, kind):
        raise UserError(f"{flag}: is no {kind.__name__}; derive a class from {base}")
    return made


def read_sources(point: str, name: str) -> dict[str, str]:
    """Return the text from which a part was imported, by its name, and the texts of its helpers, by theirs.

    A helper is a module in the same folder that the part's module imports. There is none of a built-in part.
    """
    if is_built_in(point, name):
        return {}
    part = find(point, name)
    module = _find_path(point, name).partition(":")[0]
    texts = texts_of(module, part)
    return {name: texts.pop(module), **texts}


def describe_changes(
    flag: str,
    part: str,
    texts: Mapping[str, str],
    saved: Mapping[str, str],
    is_same: Callable[[str, str], bool] = str.__eq__,
) -> Iterator[str]:
    """Yield the beginning of a line for each text of a part, see `read_sources`, that is not the saved one's same.

    The part's own is the text of its name.
    """
    for name, text in texts.items():
        if name in saved and not is_same(saved[name], text):
            whose = "its source" if name == part else f"the source of {name}, which it imports,"
            yield f"{flag} {part}: {whose} has changed"


def is_same_code(text: str, other: str) -> bool:
    """Return whether two texts are the same to Python: comments and blank lines may differ."""
    if text == other:
        return True
    try:
        return ast.dump(ast.parse(text)) == ast.dump(ast.parse(other))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # of another Python
        return False


def is_built_in(point: str, name: str) -> bool:
    """Return whether the package has a part of that name."""
    return name in BUILT_IN[point]


def is_own(point: str, name: str) -> bool:
    """Return whether a part is not of this package: an installed one has that name, or it is a path."""
    return not is_built_in(point, name) and bool(_find_path(point, name))


def names_object(text: object) -> bool:
    """Return whether a place of data is an object in a module, as my_data:cells, and no file or folder."""
    is_path = re.fullmatch(r"[^\W\d]\w*(\.\w+)*:[^\W\d]\w*", str(text)) is not None
    return is_path and not os.path.lexists(str(text))


def list_names(point: str) -> list[str]:
    """Return the sorted names of all parts of a point, the ones of installed packages last."""
    return [*BUILT_IN[point], *sorted(_installed(point, tuple(sys.path)))]


def _find_path(point: str, name: str) -> str:
    """Return the `module:attribute` of a user's part, empty if there is none."""
    return name if ":" in name else _installed(point, tuple(sys.path)).get(name, "")


@cache
def _installed(point: str, search_path: tuple[str, ...]) -> Mapping[str, str]:
    """Return the `module:attribute` of each part of the packages on a search path, by name."""
    from importlib.metadata import entry_points

    return {part.name: part.value for part in entry_points(group=f"unet_ddp.{point}")}
