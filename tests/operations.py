"""A note of the operations that torch runs."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Notes the operations that run in its context."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **kwargs or {})

    def of(self, operation: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return the arguments of each call of `operation`."""
        return [(args, kwargs) for func, args, kwargs in self.calls if func is operation]
