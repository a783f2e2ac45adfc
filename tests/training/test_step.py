"""Steps of training: they learn, the moving average follows, the rate rises and falls."""

from __future__ import annotations

import torch

from tests.jobs import PIXELS, fixed_sample, stack
from unet_ddp.metrics.scores import Scores
from unet_ddp.network.precision import Precision
from unet_ddp.network.unet import UNet
from unet_ddp.training.losses import DiceCrossEntropy
from unet_ddp.training.step import Schedule, TrainState, evaluate, moving_average, train_epoch


def learn(state: TrainState, steps: int) -> list[float]:
    batch = stack([fixed_sample(0), fixed_sample(1)])
    reports = train_epoch(
        state, [batch] * steps, DiceCrossEntropy(), PIXELS, Schedule(1e-2, steps), steps=steps
    )
    return [float(report.losses[0]) for report in reports]


def small_state(ema: float = 0.0) -> TrainState:
    torch.manual_seed(0)
    network = UNet(3, 3, width=8)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    return TrainState(
        network, network, optimizer, Precision(torch.device("cpu")), moving_average(network, ema)
    )


def test_one_batch_is_learnt_by_heart() -> None:
    state = small_state()
    losses = learn(state, 150)
    assert losses[-1] < losses[0] / 4
    counts = evaluate(
        state.network,
        [stack([fixed_sample(0), fixed_sample(1)])],
        PIXELS,
        state.precision,
        num_classes=3,
    )
    assert Scores.from_confusion(counts.confusion).dice > 0.95


def test_moving_average_lags_and_is_what_is_scored() -> None:
    state = small_state(ema=0.9)
    before = state.network.outc.conv.weight.detach().clone()
    learn(state, 5)
    average, now = (n.outc.conv.weight.detach() for n in (state.scored, state.network))
    assert state.scored is not state.network
    lag = (average - before).norm() / (now - before).norm()
    assert 0.05 < float(lag) < 1
    assert torch.equal(state.scored.inc.double_conv[1].running_mean,
                       state.network.inc.double_conv[1].running_mean)  # fmt: skip


def test_moving_average_is_torchs() -> None:
    state, theirs = small_state(ema=0.9), small_state(ema=0.9)
    assert state.average is not None and theirs.average is not None
    for _ in range(3):
        learn(state, 1)
        state.epoch, state.step = state.epoch + 1, 0
        theirs.average.update_parameters(state.network)
    ours = state.average.state_dict()
    for name, value in theirs.average.state_dict().items():
        assert torch.equal(value, ours[name]), name


def test_schedule_rises_then_falls() -> None:
    schedule = Schedule(1.0, 200, warmup=0.1)
    rates = [schedule.at(step) for step in range(200)]
    assert rates[0] < 0.06
    assert max(rates) == rates[20] == 1.0
    assert rates[:21] == sorted(rates[:21])
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert 0.01 <= rates[-1] < 0.011


def test_bfloat16_learns_too() -> None:
    state = small_state()
    state.precision = Precision(torch.device("cpu"), dtype="bfloat16")
    losses = learn(state, 40)
    assert losses[-1] < losses[0] * 0.7
