"""The one iterator between the data loader and the training step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch.profiler import record_function

from unet_ddp.data.dataset import Sample
from unet_ddp.errors import UserError

_ON_DEVICE = 2  # batches that are on the device before they are needed; the others wait on the host
_Copy = tuple[Sample, torch.cuda.Event | None]  # on its way to the device; arrived (a CPU: None)


class Prefetcher(Iterator[Sample]):
    """Batches on the device, some of them read before they are needed.

    It reads ahead so that a file that can't be read is known on all ranks before the step that
    needs it. Then no rank begins the step, and the run can be saved as it is. It copies to a GPU on a
    separate stream while the GPU computes, and it measures how long it waited for data. The batches are in host memory, pinned for a GPU; `on_error` gets the error that ends them.
    """

    def __init__(
        self,
        batches: Iterable[Sample],
        *,
        ahead: int,
        device: torch.device,
        on_error: Callable[[UserError], None],
    ) -> None:
        self._waited = 0.0
        self._waits: deque[tuple[Any, Any]] = deque()  # a GPU's events before and after reading
        self._source = iter(batches)
        self._ahead = ahead
        self._device = device
        self._on_error = on_error
        self._read: deque[Sample] = deque()
        self._sent: deque[_Copy] = deque()
        self._ended = False
        self._stream = _copy_stream(device) if device.type == "cuda" else None

    @property
    def waited(self) -> float:
        """Seconds of waiting for data: a GPU's own, which the host runs ahead of, as far as it is."""
        while self._waits and self._waits[0][1].query():
            before, after = self._waits.popleft()
            self._waited += before.elapsed_time(after) / 1000
        return self._waited

    def fill(self) -> None:
        """Read batches until `ahead` of them are ready, and send the first ones to the device."""
        while len(self._read) + len(self._sent) < self._ahead and not self._ended:
            before = self._mark()
            try:
                with record_function("data wait"):
                    self._read.append(next(self._source))
                self._send()
            except StopIteration:
                self._ended = True
            except UserError as error:
                self._ended = True
                self._on_error(error)
            finally:
                after = self._mark()
                if isinstance(before, float):
                    self._waited += after - before
                else:
                    self._waits.append((before, after))

    def _mark(self) -> Any:
        """Return this moment: of a GPU, an event after what it was given so far; else seconds."""
        if self._stream is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def __next__(self) -> Sample:
        if not self._sent:
            self.fill()
        if not self._sent:
            raise StopIteration
        batch, arrived = self._sent.popleft()
        self._send()  # while this one is computed on
        if arrived is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(arrived)  # the host goes on
            for tensor in (batch.image, batch.mask):
                tensor.record_stream(stream)  # or its memory could be reused while it is needed
        return batch

    def _send(self) -> None:
        while self._read and len(self._sent) < _ON_DEVICE:
            batch = self._read.popleft()
            if self._stream is None:  # torch.cuda.stream would wake up a GPU that is not used
                self._sent.append((copy_to_device(batch, self._device), None))
                continue
            with torch.cuda.stream(self._stream):
                batch = copy_to_device(batch, self._device)
            self._sent.append((batch, self._stream.record_event()))


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the one stream of a GPU for all batches: memory that a stream has used stays its own."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def copy_to_device(batch: Sample, device: torch.device) -> Sample:
    """Copy image and mask to `device`, without waiting for it where the memory is pinned."""
    with record_function("host to device"):
        image = batch.image.to(device, non_blocking=True)  # (N, H, W, C) uint8
        mask = batch.mask.to(device, non_blocking=True)  # (N, H, W) uint8
    return Sample(image, mask, batch.pair)
