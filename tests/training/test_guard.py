"""The guard names the images of skipped steps, and ends a run that takes no step any more."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch

from tests.tiny import make_pairs
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError
from unet_ddp.training.guard import FiniteGuard
from unet_ddp.training.step import StepReport


def report(*, finite: bool, loss: float = 1.0, pairs: tuple[int, ...] = (0,)) -> StepReport:
    return StepReport(torch.tensor([loss, 0.0, 0.0]), 1e-3, torch.tensor(finite), list(pairs))


def new_guard(
    most: int = 3, world: World | None = None, **how: bool
) -> tuple[FiniteGuard, list[str]]:
    lines: list[str] = []
    pairs = make_pairs("abc")
    return FiniteGuard(world or World(), pairs, most=most, log=lines.append, **how), lines


@pytest.mark.parametrize(("loss", "what"), [(math.nan, "loss"), (1.0, "gradients")])
def test_a_skipped_step_is_reported_with_its_images(loss: float, what: str) -> None:
    guard, lines = new_guard()
    guard.check(report(finite=True), 6)
    guard.check(report(finite=False, loss=loss, pairs=(2, 0)), 7)
    assert lines == [
        f"warning: step 7 skipped: non-finite {what}; images: c.png, a.png (1 in a row, 1 in all)"
    ]


def test_the_search_for_a_scale_is_silent_and_gathers_nothing() -> None:
    """float16: GradScaler halves its scale of 2¹⁶ until gradients fit, which is no fault."""

    class Alone(World):
        def gather(self, item: Any) -> Any:
            raise AssertionError(item)

    guard, lines = new_guard(most=20, world=Alone(size=2), has_scaler=True)
    for step in range(1, 17):
        guard.check(report(finite=False), step)
    assert lines == [] and guard.skipped == 16
    guard.world = World()
    guard.check(report(finite=False), 17)  # no scale helps
    guard.check(report(finite=True), 18)
    guard.check(report(finite=False, loss=math.nan), 19)  # nor here
    assert [line.split()[2] for line in lines] == ["17", "19"]


def test_a_gradient_that_is_bad_at_any_scale_is_reported_each_time() -> None:
    """float16: good steps between do not make it a search for a scale."""
    guard, lines = new_guard(has_scaler=True)
    for step in range(1, 11):
        guard.check(report(finite=step % 2 == 0), step)
    assert [line.split()[2] for line in lines] == [
        "3",
        "5",
        "7",
        "9",
    ]  # the first may be the search
    assert guard.skipped == 5


def test_one_overflow_after_the_scale_has_grown_is_silent() -> None:
    """GradScaler doubles its scale after 2000 good steps in a row."""
    guard, lines = new_guard(has_scaler=True)
    good, bad = report(finite=True), report(finite=False)
    for step in range(1, 2001):
        guard.check(good, step)
    guard.check(bad, 2001)
    assert lines == []
    guard.check(bad, 2002)
    for step in range(2003, 4002):
        guard.check(good, step)
    guard.check(bad, 4002)  # after 1999
    assert [line.split()[2] for line in lines] == ["2002", "4002"]
    other, lines = new_guard()
    for step in range(1, 2002):
        other.check(good, step)
    other.check(bad, 2002)
    assert len(lines) == 1  # it has no scale


def test_the_images_of_all_ranks_are_named() -> None:
    class Pair(World):
        def gather(self, item: Any) -> list[Any]:
            return [item, ["b.png", "d.png"]]

    guard, lines = new_guard(world=Pair(size=2))
    guard.check(report(finite=False, pairs=(0,)), 1)
    assert "images: a.png, b.png, d.png (" in lines[0]


def test_a_good_step_ends_a_row() -> None:
    guard, lines = new_guard(most=3)
    for step, finite in enumerate([False, False, True, False, False, True, False], start=1):
        guard.check(report(finite=finite), step)
    assert [line[-24:].partition("(")[2] for line in lines] == [
        "1 in a row, 1 in all)",
        "2 in a row, 2 in all)",
        "1 in a row, 3 in all)",
        "2 in a row, 4 in all)",
        "1 in a row, 5 in all)",
    ]
    assert guard.skipped == 5


@pytest.mark.parametrize("has_scaler", [False, True])
def test_too_many_in_a_row_end_the_run_with_what_to_type(has_scaler: bool) -> None:
    """In the search for float16's scale, too, which is silent until then."""
    guard, lines = new_guard(most=3, has_scaler=has_scaler)
    guard.check(report(finite=False), 1)
    guard.check(report(finite=False), 2)
    with pytest.raises(
        RunError, match=r"^step 3 skipped: .*images: a.png; stopped after 3 "
    ) as error:
        guard.check(report(finite=False), 3)
    assert "continue with --resume and a lower --lr" in str(error.value)
    assert len(lines) == 2 * (not has_scaler)


def test_an_epoch_after_which_no_step_was_good_ends_the_run() -> None:
    """It has fewer steps than --max-bad-steps, and its network is the untrained one."""
    guard, _ = new_guard(most=20)
    guard.flush()  # of a resumed epoch without steps
    for step in (1, 2):
        guard.check(report(finite=False), step)
    guard.flush()  # one bad image may be in both steps of a small set
    guard.check(report(finite=False), 3)
    with pytest.raises(
        RunError,
        match=r"^all 3 steps were skipped, as loss or gradients are not finite; check the images",
    ):
        guard.flush()


def test_a_resumed_epoch_of_bad_steps_does_not_end_a_run_that_had_good_ones() -> None:
    guard, _ = new_guard(most=20, skipped=1)
    for step in (6, 7, 8):
        guard.check(report(finite=False), step)
    guard.flush()


def test_one_good_step_is_enough_and_the_search_for_a_scale_needs_none() -> None:
    guard, _ = new_guard(most=20)
    guard.check(report(finite=True), 1)
    guard.check(report(finite=False), 2)
    guard.flush()
    guard.check(report(finite=False), 3)
    guard.flush()
    searching, _ = new_guard(most=20, has_scaler=True)
    searching.check(report(finite=False), 1)
    searching.flush()


class Event:
    """A moment of a GPU; `notes` has the waits for it."""

    notes: ClassVar[list[str]] = []

    def record(self) -> None:
        self.notes.append("recorded")

    def synchronize(self) -> None:
        self.notes.append("waited for")


def test_on_a_gpu_the_last_steps_of_an_epoch_are_judged_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU's answers are read two steps late, so as not to wait for it."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "notes", [])
    guard, lines = new_guard(most=4, world=World(device=torch.device("cuda")))
    for step in range(1, 5):
        guard.check(report(finite=step == 1), step)
    assert Event.notes == [*["recorded"] * 3, "waited for", "recorded", "waited for"]
    assert len(lines) == 1 and "step 2 skipped" in lines[0]
    guard.flush()
    assert [line.split()[2] for line in lines] == ["2", "3", "4"]
    assert Event.notes.count("waited for") == 4
    guard.flush()
    assert guard.skipped == 3
    with pytest.raises(RunError, match="step 5 skipped"):  # the row goes on in the next epoch
        for step in (5, 6, 7):
            guard.check(report(finite=False), step)
