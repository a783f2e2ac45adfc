"""The prefetcher reads exactly as far ahead as asked, and ends at the first unreadable file."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.tiny import CPU, make_batch
from unet_ddp.data.dataset import Sample
from unet_ddp.errors import UserError
from unet_ddp.training import prefetch
from unet_ddp.training.prefetch import Prefetcher, copy_to_device

GPU = torch.device("cuda")


class Source:
    """Five batches; counts those that were read, and fails at `bad`."""

    def __init__(self, bad: int | None = None, error: type[Exception] = UserError) -> None:
        self.read, self.bad, self.error = 0, bad, error

    def __iter__(self) -> Iterator[Sample]:
        for number in range(5):
            if number == self.bad:
                raise self.error("c.png: corrupt")
            self.read += 1
            yield make_batch(number)


def start(source: Source, ahead: int = 2) -> tuple[Prefetcher, list[UserError]]:
    errors: list[UserError] = []
    return Prefetcher(source, ahead=ahead, device=CPU, on_error=errors.append), errors


def test_it_reads_as_far_ahead_as_asked() -> None:
    source = Source()
    batches, errors = start(source)
    assert source.read == 0
    batches.fill()
    batches.fill()
    assert source.read == 2
    assert next(batches).pair.tolist() == [0, 1]
    assert source.read == 2  # what is ready is taken without reading
    batches.fill()
    assert source.read == 3
    assert [batch.pair.tolist() for batch in batches] == [[2, 3], [4, 5], [6, 7], [8, 9]]
    assert source.read == 5
    batches.fill()
    with pytest.raises(StopIteration):
        next(batches)
    assert errors == []


def test_a_run_on_the_cpu_leaves_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def current_device() -> int:
        raise AssertionError("it begins to use the GPU")

    monkeypatch.setattr(torch.cuda, "current_device", current_device)
    batches, _ = start(Source())
    assert len(list(batches)) == 5


def test_what_is_read_far_ahead_waits_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else 2 x --accumulate batches lie on the GPU, of which --batch-size auto knows nothing."""
    sent: list[int] = []

    def note(batch: Sample, device: torch.device) -> Sample:
        sent.append(int(batch.pair[0]) // 2)
        return copy_to_device(batch, device)

    monkeypatch.setattr(prefetch, "copy_to_device", note)
    source = Source()
    batches, _ = start(source, ahead=4)
    batches.fill()
    assert (source.read, sent) == (4, [0, 1])
    next(batches)
    assert sent == [0, 1, 2]  # the next goes while one is computed on
    next(batches)
    batches.fill()
    assert (source.read, sent) == (5, [0, 1, 2, 3])
    assert len(list(batches)) == 3 and sent == [0, 1, 2, 3, 4]


def test_an_unreadable_file_ends_the_batches_after_the_good_ones() -> None:
    source = Source(bad=3)
    batches, errors = start(source)
    batches.fill()
    assert errors == []
    next(batches)
    next(batches)
    batches.fill()
    assert [str(error) for error in errors] == ["c.png: corrupt"]  # before the step that needs it
    assert [batch.pair.tolist() for batch in batches] == [[4, 5]]
    batches.fill()
    assert list(batches) == [] and len(errors) == 1


def test_after_an_unreadable_file_nothing_is_read() -> None:
    class Broken(Iterator[Sample]):
        def __next__(self) -> Sample:
            raise UserError("c.png: corrupt")

    errors: list[UserError] = []
    batches = Prefetcher(Broken(), ahead=2, device=CPU, on_error=errors.append)
    batches.fill()
    batches.fill()
    assert len(errors) == 1


def test_other_errors_are_raised() -> None:
    batches, errors = start(Source(bad=1, error=RuntimeError))
    with pytest.raises(RuntimeError, match="corrupt"):
        batches.fill()
    assert errors == []


@pytest.mark.parametrize(("bad", "left", "waited"), [(None, 4, 10.0), (3, 2, 6.0)])
def test_only_the_time_of_reading_is_waiting(
    monkeypatch: pytest.MonkeyPatch, bad: int | None, left: int, waited: float
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(prefetch, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def slow() -> Iterator[Sample]:
        for batch in Source(bad):
            clock.now += 2.0
            yield batch

    batches = Prefetcher(slow(), ahead=3, device=CPU, on_error=[].append)
    assert batches.waited == 0.0
    batches.fill()
    assert batches.waited == 6.0
    clock.now += 50.0  # training
    next(batches)
    assert batches.waited == 6.0
    assert len(list(batches)) == left
    assert batches.waited == waited


class Part:
    """An image or a mask; `notes` has what happens to it, and on which stream."""

    device = "gpu"

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Part:
        self.notes.append(f"{self.name} to {device} {'at once' if non_blocking else 'waiting'}")
        return self

    def record_stream(self, stream: Stream) -> None:
        self.notes.append(f"{self.name} kept for {stream.name}")


class Stream:
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def record_event(self) -> str:
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self.notes.append(f"{self.name} waits for {event}")

    def __enter__(self) -> None:
        self.notes.append(f"on {self.name}:")

    def __exit__(self, *error: object) -> None:
        self.notes.append("end")


class Event:
    """A moment of a GPU that is busy until 105 s: what it is given before waits until then."""

    now = 100.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Stream) -> None:
        self.at, self.stream = max(Event.now, 105.0), stream.name

    def query(self) -> bool:
        return Event.now >= 105.0

    def elapsed_time(self, end: Event) -> float:
        assert self.stream == end.stream == "main"
        return 1000 * (end.at - self.at)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a GPU is given to do by a prefetcher."""
    notes: list[str] = []
    main, side = Stream("main", notes), Stream("side", notes)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "now", 100.0)
    return notes


def batch_of(notes: list[str]) -> Any:
    return Sample(Part("image", notes), Part("mask", notes), torch.arange(1))  # type: ignore[arg-type]


def test_on_a_gpu_only_what_it_has_waited_is_waiting(notes: list[str]) -> None:
    def slow() -> Iterator[Sample]:
        for _ in range(5):
            Event.now += 2.0
            yield batch_of(notes)

    batches = Prefetcher(slow(), ahead=2, device=torch.device("cuda", 1), on_error=[].append)
    batches.fill()
    assert batches.waited == 0.0  # read by 104 s
    next(batches), next(batches)
    batches.fill()  # by 108 s; the GPU was done at 105 s
    assert batches.waited == 3.0


def test_on_a_gpu_a_stream_copies_and_another_computes(notes: list[str]) -> None:
    batch = batch_of(notes)
    assert next(Prefetcher([batch], ahead=1, device=GPU, on_error=pytest.fail)) == batch
    assert notes == [
        "on side:", "image to cuda at once", "mask to cuda at once", "end",
        "main waits for event of side", "image kept for main", "mask kept for main",
    ]  # fmt: skip


def test_a_batch_keeps_its_pairs_on_the_device() -> None:
    batch = make_batch(3)
    copied = copy_to_device(batch, CPU)
    assert copied.image is batch.image and copied.mask is batch.mask
    assert copied.pair is batch.pair


def test_batches_arrive_on_the_device_that_was_asked_for() -> None:
    """On torch's meta device, which has shapes alone."""
    meta = torch.device("meta")
    source = [make_batch(0), make_batch(1)]
    batches = list(Prefetcher(source, ahead=1, device=meta, on_error=pytest.fail))
    assert len(batches) == 2
    for batch, given in zip(batches, source, strict=True):
        assert batch.image.device == batch.mask.device == meta
        assert (batch.image.shape, batch.mask.shape) == (given.image.shape, given.mask.shape)
        assert batch.pair is given.pair
