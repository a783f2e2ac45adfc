"""The state of a run: schedule, moving average, and everything that a checkpoint restores."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tiny import make_batch, make_network, make_state
from unet_ddp.metrics.scores import Scores, Validation
from unet_ddp.training.state import AdamW, Schedule, TrainState
from unet_ddp.training.step import train_steps
from unet_ddp.training.tensors import Tensors, WeightAverage

YES, NO = torch.tensor(True), torch.tensor(False)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 2 / 11),  # of 10 steps of warm-up
        (9, 2 * 10 / 11),
        (10, 2.0),
        (40, 2 * (0.01 + 0.99 * 0.75)),  # cos(pi / 3) = 1 / 2
        (55, 2 * (0.01 + 0.99 * 0.5)),
        (100, 0.02),
        (150, 0.02),
    ],
)
def test_the_rate_rises_linearly_and_falls_as_a_cosine(step: int, rate: float) -> None:
    assert Schedule(2.0, 100, warmup=0.1).at(step) == pytest.approx(rate, rel=1e-12)


def test_the_rate_s_defaults_and_short_runs() -> None:
    assert Schedule(1.0, 40).at(0) == pytest.approx(1 / 3)  # 5 % of 40 steps: 2
    assert Schedule(1.0, 40).at(2) == 1.0
    assert Schedule(1.0, 40, lowest=0.5).at(40) == pytest.approx(0.5)
    assert Schedule(1.0, 1).at(0) == 1.0
    assert Schedule(1.0, 2, warmup=0.9).at(2) == 1.0  # all of it is warm-up: no division by 0


def test_the_average_is_torchs_with_a_decay_that_rises() -> None:
    network = make_network()
    ours = WeightAverage(network, 0.15)
    theirs = AveragedModel(network)
    for number, decay in enumerate((0.0, 1 / 10, 0.15)):  # 2 / 11 is above it
        theirs.multi_avg_fn = get_ema_multi_avg_fn(decay)
        with torch.no_grad():
            for tensor in [*network.parameters(), *network.buffers()]:
                tensor += number + 1
        ours.update_ema(Tensors(network), YES)
        theirs.update_parameters(network)
        for average, expected in zip(ours.network.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(average, expected)
        for buffer, expected in zip(ours.network.buffers(), network.buffers(), strict=True):
            assert torch.equal(buffer, expected)  # copied, as the network's own are averages
    assert ours.steps == int(theirs.n_averaged) == 3
    assert not torch.equal(ours.network[0].weight, network[0].weight)
    assert not ours.network.training
    assert not any(parameter.requires_grad for parameter in ours.network.parameters())


def test_the_average_soon_forgets_the_random_first_weights() -> None:
    network = make_network()
    average = WeightAverage(network, 0.9999)
    for number in range(30):
        with torch.no_grad():
            network[0].weight.fill_(0.0 if number == 0 else 1.0)
        average.update_ema(Tensors(network), YES)
    assert average.network[0].weight.min() > 0.999  # without the rise of the decay: 0.003


def test_the_average_costs_no_kernel_for_each_parameter() -> None:
    counts = []
    for depth in (1, 9):
        network = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(depth)))
        average = WeightAverage(network, 0.9)
        with Counting() as calls:
            average.update_ema(Tensors(network), YES)
        counts.append(calls.count)
    assert counts[0] == counts[1]


class Counting(TorchDispatchMode):
    """Counts what torch is asked to compute."""

    count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def validation(dice: float, threshold: float | None = 0.25) -> Validation:
    return Validation(Scores([0.9, 0.1], [], [], [], is_binary=True), threshold, 0.5, 0.1, dice)


def test_the_best_epoch_is_the_last_of_the_highest_score() -> None:
    state = make_state()
    outcomes = []
    for dice in (math.nan, 0.0, 0.5, 0.5, 0.4, 0.6):
        state.step, state.sums = 4, torch.ones(3, dtype=torch.float64)
        outcomes.append(state.finish_epoch(validation(dice)))
        assert state.step == 0 and state.sums.tolist() == [0.0] * 3
        assert state.threshold == 0.25
    assert outcomes == [True, True, True, True, False, True]
    assert (state.best, state.best_epoch, state.epoch) == (0.6, 5, 6)
    state.skipped += torch.tensor([1, 4])  # in this epoch, and in all
    assert not state.finish_epoch(None)
    assert state.skipped.tolist() == [0, 4]
    assert state.threshold is None
    assert (state.best, state.best_epoch, state.epoch) == (0.6, 5, 7)


def test_without_a_score_the_last_epoch_is_the_best_and_a_score_beats_it() -> None:
    state = make_state()
    for k, (score, best) in enumerate(
        [(math.nan, True), (math.nan, True), (0.0, True), (math.nan, False)]
    ):
        assert state.finish_epoch(validation(score)) is best, k
    assert (state.best, state.best_epoch, state.improved_epoch) == (0.0, 2, 2)


def after_epochs(scores: list[float], *, epochs: int = 100, patience: int = 3) -> TrainState:
    """A run of 4 steps an epoch after validations with these scores."""
    state = make_state(steps=4, patience=patience, schedule=Schedule(1.0, 4 * epochs))
    for dice in scores:
        state.step = 4
        state.finish_epoch(validation(dice))
    return state


def test_patience_ends_after_epochs_without_a_better_score() -> None:
    assert after_epochs([0.1, 0.5, 0.5, 0.4]).schedule.anneal is None
    assert after_epochs([0.1, 0.5, 0.5, 0.4, 0.6, 0.6, 0.6]).schedule.anneal is None
    stuck = after_epochs([0.1, 0.5, 0.5, 0.4, 0.3])
    assert stuck.schedule.anneal == (20, 24)  # a tenth of 5 epochs, rounded up
    assert stuck.schedule.end == 24 and not stuck.is_over
    long = after_epochs([k / 100 for k in range(50)] + [0.1] * 3)
    assert long.schedule.anneal == (53 * 4, 59 * 4)
    for score in (0.1, 0.9):  # a new best does not take it back, nor does it begin again
        long.step = 4
        long.finish_epoch(validation(score))
    assert long.schedule.anneal == (53 * 4, 59 * 4)
    long.epoch = 59
    assert long.is_over


def test_patience_never_makes_a_run_longer() -> None:
    assert after_epochs([0.5] * 4, epochs=6).schedule.anneal == (16, 20)
    assert after_epochs([0.5] * 4, epochs=5).schedule.anneal is None
    assert after_epochs([0.5] * 9, patience=0).schedule.anneal is None
    assert after_epochs([math.nan] * 4).schedule.anneal == (16, 20)  # no score at all


def test_the_rate_falls_to_its_end_from_where_it_was() -> None:
    plain = Schedule(2.0, 1000)
    rates = [replace(plain, anneal=(300, 330)).at(step) for step in range(331)]
    assert rates[:301] == [plain.at(step) for step in range(301)]
    assert rates[300:] == sorted(rates[300:], reverse=True)
    assert rates[315] == pytest.approx((plain.at(300) + 0.02) / 2)
    assert rates[330] == pytest.approx(0.02)
    assert rates[329] < 0.03


def test_the_annealing_is_restored_with_its_patience() -> None:
    saved = copy.deepcopy(after_epochs([0.5] * 5).state_dict())
    assert saved["anneal"] == (16, 20)
    for patience, expected in ((3, (16, 20)), (0, None)):  # --resume --patience 0 goes on
        state = make_state(patience=patience, schedule=Schedule(1.0, 400))
        state.load_state_dict(saved)
        assert state.schedule.anneal == expected


def test_the_average_is_validated_and_the_compiled_network_trained() -> None:
    plain = make_state()
    assert plain.validation_network is plain.network
    assert plain.forward is plain.replica
    compiled = make_network()
    state = make_state(ema=0.9, compiled=compiled, replica=make_network())
    assert state.average is not None and state.validation_network is state.average.network
    assert state.forward is compiled


def test_all_of_it_is_restored() -> None:
    state = make_state(ema=0.9)
    state.precision.scaler = GradScaler("cpu", init_scale=64.0)
    list(train_steps(state, map(make_batch, range(9)), until=3))
    state.epoch, state.best, state.best_epoch, state.threshold = 5, 0.7, 3, 0.4
    state.best_name, state.best_dice, state.improved_epoch = "mean AP", 0.6, 2
    state.skipped += torch.tensor([1, 4])
    saved = copy.deepcopy(state.state_dict())
    other = make_state(make_network(seed=2), ema=0.9)
    other.precision.scaler = GradScaler("cpu")
    other.load_state_dict(saved)
    restored = other.state_dict()
    for part in ("model", "ema"):
        assert saved[part].keys() == restored[part].keys()
        assert all(torch.equal(saved[part][name], restored[part][name]) for name in saved[part])
    assert not torch.equal(saved["model"]["0.weight"], saved["ema"]["0.weight"])
    for number, moments in saved["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, restored["optimizer"]["state"][number][name])
    assert saved["scaler"]["scale"] == 64.0
    position = {"epoch": 5, "step": 3, "sums": state.sums.tolist(), "skipped": [1.0, 4.0]}
    assert saved["position"] == position
    best = {"score": 0.7, "name": "mean AP", "dice": 0.6, "epoch": 3, "improved": 2}
    assert saved["best"] == best
    for name in ("ema_steps", "scaler", "position", "best", "threshold"):
        assert saved[name] == restored[name], name
    assert saved["ema_steps"] == 3 and saved["threshold"] == 0.4
    for one in (state, other):  # and both continue alike
        list(train_steps(one, map(make_batch, [7])))
    assert all(
        torch.equal(*pair)
        for pair in zip(
            state.validation_network.parameters(),
            other.validation_network.parameters(),
            strict=True,
        )
    )


def test_a_run_without_average_or_scaler_is_restored_too() -> None:
    state = make_state()
    list(train_steps(state, map(make_batch, range(9)), until=2))
    saved = state.state_dict()
    assert saved["ema"] is None and saved["ema_steps"] == 0
    assert saved["scaler"] == {}
    other = make_state(make_network(seed=2))
    other.load_state_dict(copy.deepcopy(saved))
    assert other.done == 2 and other.threshold is None
    assert torch.equal(other.network[0].weight, state.network[0].weight)


@pytest.mark.parametrize(("saved", "set_now", "expected"), [(5, 10, 5), (5, 5, 5), (10, 2, 2)])
def test_the_last_layer_s_rate_is_at_most_that_of_both_starts(
    saved: float, set_now: float, expected: float
) -> None:
    """With a higher --lr on --resume, the saved factor would lift its peak above 0.01."""
    content = {**make_state().state_dict(), "last_rate": saved}
    state = make_state(make_network(seed=2))
    state.optimizer.param_groups[-1]["lr_scale"] = set_now
    state.load_state_dict(copy.deepcopy(content))
    assert state.optimizer.param_groups[-1]["lr_scale"] == expected


def test_a_new_average_starts_from_the_weights_that_are_restored() -> None:
    """--resume with --ema of a run that had none; validation may come before the next step."""
    saved = make_state().state_dict()
    state = make_state(make_network(seed=2), ema=0.9)
    state.load_state_dict(copy.deepcopy(saved))
    assert torch.equal(state.validation_network[0].weight, saved["model"]["0.weight"])
    assert state.average is not None and state.average.steps == 0


def test_a_run_is_over_after_the_validation_of_its_last_epoch() -> None:
    """A kill between the last step and the end resumes with what is left."""
    state = make_state(steps=4)
    state.epoch, state.step = 1, 4
    assert not state.is_over
    state.finish_epoch(None)
    assert state.is_over


def test_adamw_is_torchs_and_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    network, other = make_network(), make_network()
    theirs = torch.optim.AdamW(other.parameters(), lr=0.1, weight_decay=0.3, fused=True)
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    for _ in range(3):
        other(images).square().sum().backward()
        theirs.step()
        theirs.zero_grad()
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # an import of it would fail
    ours = AdamW(network.parameters(), lr=0.1, weight_decay=0.3, fused=True)
    for _ in range(3):
        network(images).square().sum().backward()
        ours.step()
        ours.zero_grad()
    ours.load_state_dict(copy.deepcopy(ours.state_dict()))
    ours.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
    assert [len(group["params"]) for group in ours.param_groups] == [5, 1]
    for one, two in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(ours.state[one]["exp_avg_sq"], theirs.state[two]["exp_avg_sq"])
