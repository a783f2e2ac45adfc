"""Recorders of the calls by which settings are handed on, wherever a module has imported the callee."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

Row = tuple[Any, dict[str, Any] | list[dict[str, Any]]]
"""A callee, and values of its calls by their paths: of those calls that differ in them, in their order."""


class ArrivedError(Exception):
    """A call has arrived where a program was to stop."""


def arriving(*rows: Row, last: Any = None) -> Callable[[Any], Any]:
    """Return a decorator: what a test starts hands these values on. It stops at the call of `last`."""

    all_rows = rows
    if last is not None and all(callee != last for callee, _ in rows):
        all_rows = (*rows, (last, [{}]))

    def decorate(start: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(start)
        def test(*args: Any, **fixtures: Any) -> None:
            wrong = []
            found: list[list[dict[str, Any]]] = [[] for _ in all_rows]
            with ExitStack() as stack, suppress(ArrivedError):
                for (callee, expected), calls in zip(all_rows, found, strict=True):
                    paths = expected[0] if isinstance(expected, list) else expected
                    note = functools.partial(_note, calls, paths, stops=callee == last)
                    stack.enter_context(watching(callee, note))
                start(*args, **fixtures)
            for (callee, expected), calls in zip(all_rows, found, strict=True):
                if calls != (expected if isinstance(expected, list) else [expected]):
                    wrong.append(f"{callee.__qualname__}: {calls}, expected {expected}")
            assert not wrong, "\n".join(wrong)

        return test

    return decorate


def _note(
    found: list[dict[str, Any]], paths: Iterable[str], call: dict[str, Any], *, stops: bool
) -> None:
    values = {path: _value_at(call, path) for path in paths}
    if values not in found:
        found.append(values)
    if stops:
        raise ArrivedError


def _value_at(call: dict[str, Any], path: str) -> Any:
    """Return an argument of a call, or an attribute in it: `data.labels.num_classes`; None of None."""
    name, *more = path.split(".")
    value = call[name]
    for attribute in more:
        value = None if value is None else getattr(value, attribute)
    return value


@contextmanager
def watching(callee: Any, note: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Call `note` with the arguments, defaults too, of each call of a function, a method or a class."""
    function = callee.__init__ if inspect.isclass(callee) else callee
    signature = inspect.signature(function)

    @functools.wraps(function)
    def spy(*args: Any, **how: Any) -> Any:
        bound = signature.bind(*args, **how)
        bound.apply_defaults()
        note(bound.arguments)
        return function(*args, **how)

    *owners, name = function.__qualname__.split(".")
    if inspect.isclass(callee):
        with mock.patch.object(callee, "__init__", spy):
            yield
    elif owners:  # a method
        with mock.patch.object(getattr(sys.modules[function.__module__], owners[0]), name, spy):
            yield
    else:
        with replacing(function, spy):
            yield


@contextmanager
def replacing(function: Callable[..., Any], other: Callable[..., Any]) -> Iterator[None]:
    """Put a function in the place of another in all modules of the package; also in those imported meanwhile."""
    _replace(function, other)
    try:
        yield
    finally:
        _replace(other, function)


def _replace(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    for module in [each for name, each in sys.modules.items() if name.startswith("unet_ddp")]:
        for name, value in [*vars(module).items()]:
            if value is old:
                setattr(module, name, new)
