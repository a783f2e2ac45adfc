"""Work that goes on beside training, one piece at a time, and a copy of the state for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class Background(Generic[Result]):
    """One thread for work that is begun here and waited for later.

    Python waits for it at its end too: what was begun is finished, unless the process is killed.
    """

    def __init__(self) -> None:
        # A second pool of OpenMP threads would be more than there are cores: libgomp's threads go
        # to sleep between kernels then, in training too, and waking them costs more than the small ones.
        self._pool = ThreadPoolExecutor(
            1, thread_name_prefix="checkpoint", initializer=torch.set_num_threads, initargs=(1,)
        )
        self._work: Future[Result] | None = None

    def begin(self, work: Callable[[], Result]) -> None:
        """Begin `work`; what was begun before must have been waited for."""
        assert self._work is None
        self._work = self._pool.submit(work)

    def wait(self) -> Result | None:
        """What the work begun last has returned, or raised; None where none was begun."""
        work, self._work = self._work, None
        return None if work is None else work.result()

    def close(self) -> None:
        """Wait for the work, and end the thread."""
        self._pool.shutdown()


def copy_to_host(content: Any) -> Any:
    """`content` with its tensors copied to the host's memory: what the device does next is not in it.

    A tensor that occurs twice is copied once.
    """
    copies: dict[int, Tensor] = {}

    def copy(item: Any) -> Any:
        if isinstance(item, Tensor):
            if id(item) not in copies:
                copies[id(item)] = item.detach().to("cpu", copy=True)
            return copies[id(item)]
        if isinstance(item, dict):
            return {key: copy(value) for key, value in item.items()}
        if isinstance(item, (list, tuple)):
            return type(item)(map(copy, item))
        return item

    return copy(content)
