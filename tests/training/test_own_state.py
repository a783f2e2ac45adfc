"""What parts of the user's own keep from call to call: a run takes it only if a resumed one goes on alike."""

from __future__ import annotations

import copy
import math
import warnings
from collections import deque
from collections.abc import Callable
from functools import cached_property, partial, wraps
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from unet_ddp.config import OptimizationConfig
from unet_ddp.errors import UserError
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.own_loss import try_loss
from unet_ddp.training.own_network import try_network

LAST: deque[float] = deque(maxlen=3)
GRIDS: dict[int, Tensor] = {}


class Meter:
    """An object with a number, which no checkpoint has."""

    def __init__(self) -> None:
        self.count = 0


def remember(values: deque[float], value: Tensor) -> Tensor:
    """Return the value by the mean of the last three, once there are three."""
    weighed = value / (0.1 + sum(values) / 3) if len(values) == 3 else value
    values.append(float(value.detach()))
    return weighed


def count(meter: Any, value: Tensor) -> Tensor:
    """Return twice the value from the 100th call on."""
    meter.count += 1
    return value * 2 if meter.count >= 100 else value


class InAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: Any = deque(maxlen=3)

    def forward(self, value: Tensor) -> Tensor:
        return remember(self.last, value)


class InClass(nn.Module):
    last: ClassVar[deque[float]] = deque(maxlen=3)

    def forward(self, value: Tensor) -> Tensor:
        return remember(self.last, value)


class InDefault(nn.Module):
    def forward(self, value: Tensor, last: deque[float] = deque(maxlen=3)) -> Tensor:  # noqa: B006
        return remember(last, value)


class InModule(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return remember(LAST, value)


class InObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.meter = Meter()

    def forward(self, value: Tensor) -> Tensor:
        return count(self.meter, value)


class InNamespace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = {"meters": [SimpleNamespace(count=0)]}

    def forward(self, value: Tensor) -> Tensor:
        return count(self.kept["meters"][0], value)


class OfLastCall(nn.Module):
    """Each call replaces what the next one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, value: Tensor) -> Tensor:
        moved = value if self.last is None else value + (value - self.last) ** 2
        self.last = value.detach()
        return moved


class OfParameters(nn.Module):
    """Keeps a copy of a layer that its state dict does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.copies: list[nn.Module] = []

    def forward(self, value: Tensor) -> Tensor:
        if not self.copies:
            self.copies.append(copy.deepcopy(self.layer).requires_grad_(False))
        return value + self.copies[0](value.view(1)).squeeze()  # type: ignore[no-any-return]


class Teacher(OfParameters):
    """The copy follows the layer, and is not used yet."""

    def forward(self, value: Tensor) -> Tensor:
        super().forward(value)
        if self.training:
            pairs = zip(self.copies[0].parameters(), self.layer.parameters(), strict=True)
            for mean, parameter in pairs:
                mean.mul_(0.9).add_(parameter, alpha=0.1)
        return value


class InHiddenModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [InObject()]

    def forward(self, value: Tensor) -> Tensor:
        return self.hidden[0](value)  # type: ignore[no-any-return]


class OfClass(nn.Module):
    calls: ClassVar[int] = 0

    def forward(self, value: Tensor) -> Tensor:
        type(self).calls += 1
        return value


def counted(function: Callable[..., Tensor]) -> Any:
    """Return a function that counts its calls in an attribute, and gives the count if it is asked for."""

    @wraps(function)
    def call(value: Tensor, *args: int) -> Tensor:
        call.calls += 1  # type: ignore[attr-defined]
        return function(value, *(call.calls for _ in args))  # type: ignore[attr-defined]

    call.calls = 0  # type: ignore[attr-defined]
    return call


@counted
def helper(value: Tensor, calls: int = 1) -> Tensor:
    return value * calls


class InHelper(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return helper(value, 1)  # type: ignore[no-any-return]


class Watched(nn.Module):
    """Has a helper that counts its calls, and does not use the count."""

    def forward(self, value: Tensor) -> Tensor:
        return helper(value)  # type: ignore[no-any-return]


KEPT = {
    InHelper: "",  # by its value
    OfParameters: "",  # by its value
    Teacher: "copies",
    InHiddenModule: "hidden",
    OfClass: "OfClass.calls",
    InAttribute: "last",
    InClass: "InClass.last",
    InDefault: "InDefault.forward",
    InModule: "test_own_state.LAST",
    InObject: "meter",
    InNamespace: "kept",
    OfLastCall: "",  # by its value
}


class Buffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, value: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * value.detach()
        return value / self.mean


class Number(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, value: Tensor) -> Tensor:
        self.calls += self.training
        return value * (1 + self.calls) if self.training else value


class Cached(nn.Module):
    """Caches by size, in an attribute, a list, a property and the module, and a buffer that the first call makes."""

    def __init__(self) -> None:
        super().__init__()
        self.grids: dict[int, Tensor] = {}

    @cached_property
    def scale(self) -> Tensor:
        return torch.full((), 2.0)

    def forward(self, value: Tensor) -> Tensor:
        for grids in (self.grids, GRIDS):
            grid = grids.setdefault(value.ndim, torch.linspace(0, 1, 3))
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.ones(()), persistent=False)
        return value * self.scale * self.late + grid.mean()


class Shown(nn.Module):
    """Keeps what it has computed last, for the user to look at."""

    def forward(self, value: Tensor) -> Tensor:
        self.last, self.parts = value.detach(), {"value": [value]}
        return value


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        one, two = nn.Linear(1, 1), nn.Linear(1, 1)
        self.one, self.two = parametrizations.spectral_norm(one), parametrizations.weight_norm(two)
        self.drop = nn.Dropout(0.3)

    def forward(self, value: Tensor) -> Tensor:
        return self.drop(self.two(self.one(value.view(-1, 1)))).view(value.shape)  # type: ignore[no-any-return]


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, value: Tensor) -> Tensor:
        return self.norm(value.view(-1, 1)).view(value.shape)  # type: ignore[no-any-return]


class Hidden(nn.Module):
    """Has a constant module in a list, in training: its batch norm does not use what it counts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.constant = [nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)).requires_grad_(False)]

    def forward(self, value: Tensor) -> Tensor:
        return value + self.constant[0](value.expand(2, 1)).sum() / 10  # type: ignore[no-any-return]


class Odd(nn.Module):
    """Keeps what has no value, no size or is not equal to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.times = lambda: later, [np.datetime64("NaT")]
        self.sizes = [nn.parameter.UninitializedParameter(), nn.LazyLinear(1)]
        if self.times is None:
            later = 1

    def forward(self, value: Tensor) -> Tensor:
        return value


class Best(nn.Module):
    """Its number is infinite before each other call."""

    def __init__(self) -> None:
        super().__init__()
        self.best = 0.0

    def forward(self, value: Tensor) -> Tensor:
        self.best = 5 if math.isinf(self.best) else math.inf
        return value


TAKEN = (Watched, Hidden, Odd, Best, Buffer, Number, Cached, Shown, Normed, Frozen)


@pytest.fixture(autouse=True)
def empty() -> None:
    """Begin each test with nothing kept: tests share the module and the classes."""
    LAST.clear()
    InClass.last.clear()
    GRIDS.clear()


class Loss(nn.Module):
    """A loss with one of the modules above."""

    kind: ClassVar[type[nn.Module]] = nn.Identity

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.kind()

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        return self.inner(F.cross_entropy(logits, masks, ignore_index=255))  # type: ignore[no-any-return]


class Network(nn.Module):
    """A network with one."""

    stride = 2
    kind: ClassVar[type[nn.Module]] = nn.Identity

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.inner, self.head = self.kind(), nn.Conv2d(channels, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(images)
        return logits + self.inner(images.mean())  # type: ignore[no-any-return]


def check_loss(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loss, "kind", kind)
    loss = SegmentationLoss(OptimizationConfig(loss=f"{__name__}:Loss+ce"))
    try_loss(loss, 2, torch.device("cpu"))


def check_network(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "kind", kind)
    architecture = choose_architecture(f"{__name__}:Network", None, channels=3, num_classes=2)
    torch.manual_seed(0)
    network = build_network(architecture)
    try_network("Network", network, lambda: build_network(architecture), torch.rand(2, 3, 8, 8))


@pytest.mark.parametrize("check", [check_loss, check_network])
@pytest.mark.parametrize("kind", KEPT)
def test_what_acts_only_after_some_calls_is_refused(
    check: Any, kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UserError, match=f"--(loss|model) .*{KEPT[kind]} .*in no checkpoint.*make it a buffer"
    ):
        check(kind, monkeypatch)


@pytest.mark.parametrize("check", [check_loss, check_network])
@pytest.mark.parametrize("kind", TAKEN)
def test_what_is_saved_or_the_same_in_each_call_is_taken(
    check: Any, kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(kind, monkeypatch)


class Infinite(nn.Module):
    """In prediction alone."""

    def forward(self, value: Tensor) -> Tensor:
        return value if self.training else value / (value - value)


class NotANumber(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value * ((value - value) / (value - value))


@pytest.mark.parametrize("kind", [Infinite, NotANumber])
def test_logits_that_are_no_numbers_are_not_taken_for_a_state(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="--model Network: its logits contain nan or infinity"):
        check_network(kind, monkeypatch)


class Untrained(Network):
    """Its logits have no gradient."""

    forward = torch.no_grad()(Network.forward)


def test_logits_without_a_gradient_are_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Network", Untrained)
    with pytest.raises(UserError, match=r"--model Network: its logits have no gradient, .*no_grad"):
        check_network(nn.Identity, monkeypatch)


def test_a_function_s_list_is_refused() -> None:
    loss = SegmentationLoss(OptimizationConfig(loss=f"{__name__}:by_the_last"))
    with pytest.raises(UserError, match=r"test_own_state\.LAST is kept from call to call"):
        try_loss(loss, 2, torch.device("cpu"))


def by_the_last(logits: Tensor, masks: Tensor) -> Tensor:
    """Return a loss by the mean of the last three."""
    return remember(LAST, F.cross_entropy(logits, masks, ignore_index=255))


class Counter(Network):
    """Counts its passes in its class."""

    calls: ClassVar[int] = 0

    def forward(self, images: Tensor) -> Tensor:
        type(self).calls += 1
        return super().forward(images)


def test_a_number_of_a_network_s_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Network", Counter)
    with pytest.raises(UserError, match=r"Counter\.calls is kept from pass to pass"):
        check_network(nn.Identity, monkeypatch)


def namesake(function: Any) -> type[nn.Module]:
    """Return a class of always the same name."""
    return type("Namesake", (nn.Module,), {"forward": function, "calls": 0})


class TwoOfAName(nn.Module):
    """The first counts in its class, and the second has the class's name."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = COUNTING(), namesake(lambda _, value: value)()

    def forward(self, value: Tensor) -> Tensor:
        return self.two(self.one(value))  # type: ignore[no-any-return]


COUNTING = namesake(OfClass.forward)


@pytest.mark.parametrize("check", [check_loss, check_network])
def test_a_class_does_not_hide_another_of_its_name(
    check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"Namesake\.calls is kept"):
        check(TwoOfAName, monkeypatch)


def scripted() -> nn.Module:
    """Return a module of TorchScript."""
    with warnings.catch_warnings():  # that it is old
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Identity())  # type: ignore[no-any-return]


@pytest.mark.parametrize("check", [check_loss, check_network])
def test_a_module_of_torchscript_is_a_line(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"--(loss|model) .*has a module of TorchScript"):
        check(partial(scripted), monkeypatch)
    monkeypatch.setitem(globals(), "by_the_last", scripted())
    with pytest.raises(UserError, match=r"--loss .*by_the_last: is or has a module of TorchScript"):
        test_a_function_s_list_is_refused()


@pytest.mark.parametrize("check", [check_loss, check_network])
@pytest.mark.parametrize("norm", [nn.LazyLinear, nn.LazyBatchNorm1d])
def test_a_lazy_layer_is_a_line(check: Any, norm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make = partial(norm, 1) if norm is nn.LazyLinear else partial(norm, affine=False)
    with pytest.raises(UserError, match=r"--(loss|model) .*has no size until the first pass"):
        check(make, monkeypatch)
