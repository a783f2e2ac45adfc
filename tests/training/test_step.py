"""A step computes exactly what its formulas say, or changes nothing."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from tests.tiny import PIXELS, make_batch, make_network, make_state
from unet_ddp.errors import UserError
from unet_ddp.training import step as step_module
from unet_ddp.training.losses import Losses, SegmentationLoss
from unet_ddp.training.state import TrainState
from unet_ddp.training.step import derive_seed, forward, train_step, train_steps

BATCHES = [make_batch(number) for number in range(8)]


def gradients_of(network: nn.Module, batches: list[int]) -> tuple[list[Tensor], list[float]]:
    """Gradients of the mean loss over batches, and that loss and its parts, in a plain loop."""
    network.train()
    sums = torch.zeros(3, dtype=torch.float64)
    for number in batches:
        loss = SegmentationLoss()(network(PIXELS(BATCHES[number].image, torch.float64)),
                                  BATCHES[number].mask)  # fmt: skip
        (loss.total / len(batches)).backward()
        sums += torch.stack([part.detach() for part in loss]) / len(batches)
    gradients = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    return gradients, sums.tolist()


def norm_of(gradients: list[Tensor]) -> float:
    return math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))


def sgd(network: nn.Module) -> torch.optim.Optimizer:
    """Its change is the gradient itself; AdamW's first one would hide a wrong factor."""
    return torch.optim.SGD(network.parameters(), lr=1.0, fused=True)


def change_by(state: TrainState, **how: Any) -> list[Tensor]:
    """The gradients that a step of SGD applied."""
    before = [parameter.detach().clone() for parameter in state.network.parameters()]
    list(train_steps(state, iter(BATCHES), until=1, **how))
    rate = state.optimizer.param_groups[0]["lr"]
    after = state.network.parameters()
    return [(old - new.detach()) / rate for old, new in zip(before, after, strict=True)]


def assert_equal(one: list[Tensor], other: list[Tensor], tolerance: float = 1e-10) -> None:
    for first, second in zip(one, other, strict=True):
        torch.testing.assert_close(first, second, rtol=tolerance, atol=1e-13)


def test_steps_are_those_of_adamw_by_hand() -> None:
    network = make_network()
    state, plain = make_state(network), copy.deepcopy(network)
    plain[1].momentum = 1.0
    reports = list(train_steps(state, iter(BATCHES), until=3))
    weights = [parameter.detach().clone() for parameter in plain.parameters()]
    first = [torch.zeros_like(weight) for weight in weights]
    second = [torch.zeros_like(weight) for weight in weights]
    total = torch.zeros(3, dtype=torch.float64)
    for number, report in enumerate(reports):
        for parameter, weight in zip(plain.parameters(), weights, strict=True):
            parameter.data.copy_(weight)
        gradients, losses = gradients_of(plain, [number])
        rate, t = state.schedule.at(number), number + 1
        for w, m, v, g in zip(weights, first, second, gradients, strict=True):
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g**2)
            w.mul_(1 - rate * 0.1)  # decoupled weight decay
            w -= rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        plain[1].momentum = 1 / (t + 1)  # of the next batch: see test_batchnorm.py
        assert report.learning_rate == rate
        assert report.is_finite.item() is True
        assert report.pairs == [2 * number, 2 * number + 1]
        assert report.losses.tolist() == pytest.approx(losses, rel=1e-6)
        total += report.losses
    assert_equal([p.detach() for p in state.network.parameters()], weights)
    assert_equal(list(state.network.buffers()), list(plain.buffers()))
    assert state.sums.tolist() == pytest.approx(total.tolist(), rel=1e-12)
    assert (state.step, state.done) == (3, 3)
    assert all(parameter.grad is None for parameter in state.network.parameters())


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_accumulated_gradients_are_the_mean_over_the_batches(
    monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    unsynchronised: list[nn.Module] = []
    monkeypatch.setattr(
        step_module, "without_sync", lambda replica: nullcontext(unsynchronised.append(replica))
    )
    network = make_network()
    gradients, losses = gradients_of(copy.deepcopy(network), list(range(accumulate)))
    state = make_state(network, optimizer=sgd(network))
    assert_equal(change_by(state, accumulate=accumulate), gradients)
    assert len(unsynchronised) == accumulate - 1  # DDP sums over ranks once, at the last batch
    assert state.sums.tolist() == pytest.approx(losses, rel=1e-6)
    (report,) = train_steps(state, iter(BATCHES), until=2, accumulate=accumulate)
    assert report.pairs == list(range(2 * accumulate))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_averages_of_a_first_step_are_of_all_its_batches(accumulate: int) -> None:
    """As batch norm weighs them, but for its first values, 0 and 1, which have no weight."""
    state = make_state(make_network(), unbiased=True)
    weights = [0.1 * 0.9 ** (accumulate - 1 - k) for k in range(accumulate)]
    means: Any = 0
    for weight, batch in zip(weights, BATCHES, strict=False):
        features = state.network[0](PIXELS(batch.image, torch.float64)).detach()
        means = means + weight / sum(weights) * features.mean((0, 2, 3))
    list(train_steps(state, iter(BATCHES), until=1, accumulate=accumulate))
    torch.testing.assert_close(state.network[1].running_mean, means)


@pytest.mark.parametrize("scale", [None, 1024.0])
def test_clipping_limits_the_norm_of_the_true_gradients(scale: float | None) -> None:
    """float16 scales losses up: the norm is taken after the scale is removed."""
    network = make_network()
    gradients, _ = gradients_of(copy.deepcopy(network), [0])
    norm = norm_of(gradients)
    for clip, factor in ((norm / 4, 1 / 4), (norm * 4, 1.0), (0.0, 1.0)):
        copied = copy.deepcopy(network)
        state = make_state(copied, optimizer=sgd(copied))
        if scale is not None:
            state.precision.scaler = GradScaler("cpu", init_scale=scale)
        expected = [gradient * factor for gradient in gradients]
        assert_equal(change_by(state, clip=clip), expected, tolerance=1e-5)  # clip adds 1e-6


class Faulty(SegmentationLoss):
    """A loss that is a function."""

    def __init__(self, function: Callable[[Tensor, Tensor], Losses]) -> None:
        super().__init__()
        self.forward = function  # type: ignore[method-assign]


def nan_logits(logits: Tensor, masks: Tensor) -> Losses:
    return SegmentationLoss()(logits * math.nan, masks)


def nan_loss_alone(logits: Tensor, masks: Tensor) -> Losses:
    loss = SegmentationLoss()(logits, masks)
    return loss._replace(total=loss.total + math.nan)  # whose gradient is finite


def nan_gradient_alone(logits: Tensor, masks: Tensor) -> Losses:
    loss = SegmentationLoss()(logits, masks)
    loss.total.register_hook(lambda gradient: gradient * math.inf)
    return loss


@pytest.mark.parametrize(
    ("bad", "scaled"),
    [
        (nan_logits, False),
        (nan_loss_alone, False),
        (nan_gradient_alone, False),
        (nan_logits, True),
        (nan_loss_alone, True),
        (nan_gradient_alone, True),
    ],
)
def test_a_step_that_is_not_finite_changes_nothing(
    bad: Callable[[Tensor, Tensor], Losses], scaled: bool
) -> None:
    """Neither weights, batch norm's buffers, optimizer, moving average nor sums."""
    state = make_state(ema=0.5)
    if scaled:
        state.precision.scaler = GradScaler("cpu", init_scale=1024.0)
    list(train_steps(state, iter(BATCHES), until=2))
    before = copy.deepcopy(state.state_dict())
    good, state.loss = state.loss, Faulty(bad)
    (report,) = train_steps(state, iter(BATCHES), until=3)
    assert not report.is_finite
    assert report.losses[0].isfinite() == (bad is nan_gradient_alone)
    after = state.state_dict()
    for part in ("model", "ema"):
        for name, value in after[part].items():
            assert torch.equal(value, before[part][name]), f"{part}: {name}"
            assert value.isfinite().all()
    for number, moments in after["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, before["optimizer"]["state"][number][name]), name
    assert after["position"] == {**before["position"], "step": 3, "skipped": [1.0, 1.0]}
    if scaled:  # a loss does not depend on the scale, its gradients do
        assert state.precision.scaler.get_scale() == (1024.0 if bad is nan_loss_alone else 512.0)
    assert all(parameter.grad is None for parameter in state.network.parameters())
    state.loss = good
    (report,) = train_steps(state, iter(BATCHES), until=4)
    assert report.is_finite
    assert not torch.equal(state.state_dict()["model"]["0.weight"], before["model"]["0.weight"])


def test_a_first_step_that_is_not_finite_leaves_the_average_at_the_first_weights() -> None:
    state = make_state(ema=0.5, loss=Faulty(nan_logits))
    list(train_steps(state, iter(BATCHES), until=1))
    for name, value in make_network().state_dict().items():
        assert torch.equal(state.validation_network.state_dict()[name], value), name


def test_the_rate_follows_the_schedule_over_epochs_and_until_stops() -> None:
    state = make_state(steps=4)
    state.epoch, state.step = 1, 1
    state.network.eval()
    reports = list(train_steps(state, iter(BATCHES), until=7))
    assert state.network.training
    assert [report.learning_rate for report in reports] == [state.schedule.at(5), state.schedule.at(6)]  # fmt: skip
    assert (state.epoch, state.step, state.done) == (1, 3, 7)
    assert list(train_steps(state, iter(BATCHES), until=7)) == []
    assert len(list(train_steps(state, iter(BATCHES)))) == 1  # the rest of the epoch
    assert list(train_steps(state, iter(BATCHES))) == []


def test_a_group_s_rate_is_scaled_and_the_last_group_s_is_reported() -> None:
    """SGD's change is the gradient: a tenth of it where the rate is a tenth."""
    changes = []
    for scale in (1.0, 0.1):
        network = make_network()
        first, rest = [*network[0].parameters()], [*network[1:].parameters()]
        groups = [{"params": first, "lr_scale": scale}, {"params": rest}]
        state = make_state(network, optimizer=torch.optim.SGD(groups, lr=1.0, fused=True))
        before = [parameter.detach().clone() for parameter in (*first, *rest)]
        (report,) = train_steps(state, iter(BATCHES), until=1)
        assert report.learning_rate == state.schedule.at(0)
        changes.append([new - old for new, old in zip((*first, *rest), before, strict=True)])
    assert_equal([changes[1][0] * 10, *changes[1][1:]], changes[0])


def test_frozen_parts_keep_every_bit_in_training() -> None:
    """Weights, batch norm's statistics and their average; the rest is trained on them."""
    network = make_network(dropout=0.5)
    frozen = nn.Sequential(*network[:4]).requires_grad_(False)  # its dropout is off, too
    state = make_state(network, frozen=list(network[:4]), ema=0.9)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    features = []
    network[4].register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].clone()))
    for _ in range(2):  # epochs, with a validation between
        list(train_steps(state, iter(BATCHES)))
        network.train()
        state.epoch, state.step = 1, 0
    assert state.average is not None
    for name, value in network.state_dict().items():
        is_frozen = not name.startswith("4.")
        assert torch.equal(value, before[name]) is is_frozen, name
        if is_frozen:
            assert torch.equal(state.average.network.state_dict()[name], value), name
    with torch.no_grad():
        expected = frozen.eval()(PIXELS(BATCHES[0].image, torch.float64))
    torch.testing.assert_close(features[0], expected)
    assert all(not state.optimizer.state[p] for p in frozen.parameters())  # and no moments


def losses_with_dropout(seed: int, *, stop: int | None = None) -> list[float]:
    """Losses of four steps of a network with dropout; with a resume after `stop` steps."""
    state = make_state(make_network(dropout=0.5), seed=seed)
    reports = list(train_steps(state, iter(BATCHES), until=stop))
    if stop is not None:
        resumed = make_state(make_network(dropout=0.5, seed=2), seed=seed)
        resumed.load_state_dict(copy.deepcopy(state.state_dict()))
        torch.manual_seed(99)
        reports += train_steps(resumed, iter(BATCHES[stop:]))
    return [float(report.losses[0]) for report in reports]


def test_random_layers_depend_on_seed_and_step_alone() -> None:
    whole = losses_with_dropout(3)
    assert losses_with_dropout(3, stop=2) == whole
    assert losses_with_dropout(4) != whole


def test_seeds_differ_for_each_pair_of_numbers() -> None:
    assert derive_seed(3, 7) == int.from_bytes(
        hashlib.blake2b(b"3:7", digest_size=7).digest(), "big"
    )
    pairs = [(seed, step) for seed in range(20) for step in range(20)]
    assert len({derive_seed(*pair) for pair in pairs}) == len(pairs)
    assert all(0 <= derive_seed(*pair) < 2**56 for pair in pairs)


@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_batch_norm_of_a_single_value_is_a_mistake_with_width_and_height(
    error: type[Exception],
) -> None:
    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, images: Tensor) -> Tensor:
            try:
                return self.norm(images.mean((2, 3), keepdim=True))
            except ValueError as inner:
                raise error(str(inner)) from None

    images = make_batch(0, count=1, height=24, width=40).image
    with pytest.raises(UserError, match=r"^--batch-size 1: .* in images of 40x24; use a larger"):
        forward(Compiled(), PIXELS, images)


def test_other_errors_of_a_network_are_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="channels"):
        forward(nn.Conv2d(4, 2, 1), PIXELS, make_batch(0).image)


def test_images_reach_the_network_in_its_dtype() -> None:
    seen: list[Tensor] = []
    network = nn.Conv2d(3, 2, 1).double()
    network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    logits = forward(network, PIXELS, torch.full((2, 4, 5, 3), 255, dtype=torch.uint8))
    assert logits.shape == (2, 2, 4, 5)
    assert seen[0].dtype == torch.float64
    pixel = [(1 - mean) / std for mean, std in zip(PIXELS.mean, PIXELS.std, strict=True)]
    assert seen[0][1, :, 3, 4].tolist() == pytest.approx(pixel)


def test_it_learns(rng: Any) -> None:
    """A class that brightness shows is learnt in bfloat16, too."""
    batch = make_batch(int(rng.integers(100)))
    batch.mask.copy_(batch.image.float().mean(-1) > 127)
    for dtype in ("auto", "bfloat16"):
        network = make_network().float()
        state = make_state(network, steps=60)
        state.precision = type(state.precision)(torch.device("cpu"), dtype)
        reports = list(train_steps(state, iter([batch] * 60)))
        assert reports[-1].losses[0] < reports[0].losses[0] * 0.7


def test_a_step_takes_as_many_batches_as_it_accumulates() -> None:
    source = iter(BATCHES)
    state = make_state()
    state.replica.train()
    train_step(state, source, accumulate=3)
    assert next(source) is BATCHES[3]
    train_step(state, source)
    assert next(source) is BATCHES[5]


def test_the_network_s_tensors_are_listed_in_the_first_step_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A walk over the modules of a large network takes longer than launching a kernel for each."""
    state = make_state(ema=0.9)
    train_step(state, iter(BATCHES))
    walks: list[str] = []
    for name in ("buffers", "parameters"):
        walk = getattr(nn.Module, name)

        def note(network: nn.Module, name: str = name, walk: Any = walk) -> Any:
            walks.append(name)
            return walk(network)

        monkeypatch.setattr(nn.Module, name, note)
    train_step(state, iter(BATCHES))
    assert walks == ["parameters"]  # the first of them says in which dtype images are wanted
