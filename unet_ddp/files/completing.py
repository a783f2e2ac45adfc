"""Files that belong together: existing ones stay if they would be the same, and none is written if one differs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Concatenate, ParamSpec

from unet_ddp.errors import UserError

# A file, what would replace it, and what does so once closed.
_Written = tuple[Path, Path, ExitStack]
_PIECE = 1 << 20
_WAYS = "use --overwrite, or another --output"
_held: ContextVar[list[_Written] | None] = ContextVar("held", default=None)  # of this thread
P = ParamSpec("P")


class _KeptError(Exception):
    """Ends what would replace a file."""


def holds_back(
    replacing: Callable[Concatenate[Path, P], AbstractContextManager[Path]],
) -> Callable[Concatenate[Path, P], AbstractContextManager[Path]]:
    """Return `replacing` with its last step put off to the end of a `completing` around it."""

    @contextmanager
    @functools.wraps(replacing)
    def held_back(path: Path, /, *args: P.args, **how: P.kwargs) -> Iterator[Path]:
        held = _held.get()
        with ExitStack() as stack:
            temporary = stack.enter_context(replacing(path, *args, **how))
            yield temporary
            if held is not None:
                held.append((path, temporary, stack.pop_all()))

    return held_back


@contextmanager
def completing(existing: Collection[Path], ways: str = _WAYS) -> Iterator[list[Path]]:
    """Hold back what this thread replaces in the block; at its end, write the files that are missing.

    A file of `existing` that would be the same stays, and is then in the list. `ways` say what to type where one is
    not.

    Raises:
        UserError: one of `existing` would be another file; then none is written.
    """
    kept: list[Path] = []
    if not existing:
        yield kept
        return
    held: list[_Written] = []
    token = _held.set(held)
    try:
        yield kept
        for path, temporary, _ in held:
            if path in existing:
                _check_same(path, temporary, ways)
                kept.append(path)
        while held:
            path, _, stack = held.pop(0)
            if path in kept:
                _drop(stack, _KeptError())
            else:
                _close(stack, path)
    except BaseException as error:
        for _, _, stack in held:
            _drop(stack, error)
        raise
    finally:
        _held.reset(token)


def _drop(stack: ExitStack, error: BaseException) -> None:
    stack.__exit__(type(error), error, error.__traceback__)


def _close(stack: ExitStack, path: Path) -> None:
    try:
        stack.close()
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}; {_WAYS}") from None


def _check_same(path: Path, other: Path, ways: str) -> None:
    """Refuse a file that is not the same as the other, or can't be read."""
    reason = "differs from this prediction"
    try:
        if _is_same(path, other):
            return
    except OSError as error:
        reason = f"can't be compared: {error.strerror or error}"
    raise UserError(f"{path}: already exists, and {reason}; {ways}")


def _is_same(path: Path, other: Path) -> bool:
    with path.open("rb") as file, other.open("rb") as other_file:
        while piece := file.read(_PIECE):
            if piece != other_file.read(_PIECE):
                return False
        return not other_file.read(1)
