"""A zoo of parts of a user's own: each way in which torch's modules keep state. Others may add a row.

NETWORKS and LOSSES say for each whether a run takes it, or which words the one line has that refuses it.
"""

from __future__ import annotations

import copy
import random
import warnings
from functools import cache, lru_cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from unet_ddp.network.architecture import build_network, choose_architecture


class Plain(nn.Module):
    """A network without more state than its layers; the others add to it."""

    stride = 2

    def __init__(self, channels: int, num_classes: int, width: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(channels, width, 3, 2, 1), nn.BatchNorm2d(width))
        self.head = nn.ConvTranspose2d(width, num_classes, 2, 2)
        self.add(width)

    def add(self, width: int) -> None:
        pass

    def middle(self, features: Tensor) -> Tensor:
        return features

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.middle(self.encoder(images).relu()))  # type: ignore[no-any-return]


def network(add: Any = None, middle: Any = None, **more: Any) -> type[Plain]:
    methods = {"add": add or Plain.add, "middle": middle or Plain.middle, **more}
    return type("Animal", (Plain,), methods)


def _mean(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.mean = 0.5 * self.mean + 0.5 * x.mean((0, 2, 3), keepdim=True).detach()
    return x - self.mean


def _mean_in_place(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.mean.mul_(0.5).add_(0.5 * x.mean((0, 2, 3), keepdim=True).detach())
    return x - self.mean


def _buffer(self: Any, width: int, **how: Any) -> None:
    self.register_buffer("mean", torch.zeros(1, width, 1, 1), **how)


def _tensor(self: Any, width: int) -> None:
    self.mean = torch.zeros(1, width, 1, 1)


def _constant(self: Any, width: int) -> None:
    self.shift = torch.linspace(-1, 1, width).view(1, -1, 1, 1)


def _drawn(self: Any, width: int) -> None:
    self.shift = torch.randn(1, width, 1, 1)


def _loose(self: Any, width: int) -> None:
    self.register_buffer("shift", torch.linspace(-1, 1, width).view(1, -1, 1, 1), persistent=False)


def _made(self: Any, x: Tensor) -> Tensor:
    return x + torch.linspace(-1, 1, x.shape[1]).view(1, -1, 1, 1)


def _shift(self: Any, x: Tensor) -> Tensor:
    return x + self.shift


def _counter(self: Any, width: int) -> None:
    self.passes, self.block = 0, nn.Conv2d(width, width, 1)


def _ramp(self: Any, x: Tensor) -> Tensor:
    self.passes += self.training
    return x * (1 + self.passes)


def _huge(self: Any, width: int) -> None:
    self.passes, self.block = 10**400, nn.Conv2d(width, width, 1)


def _method(self: Any, width: int) -> None:
    self.function = self.middle  # a name that our own wrapper of a loss has, too


def _skip(self: Any, x: Tensor) -> Tensor:
    self.passes += self.training
    return x + self.block(x) if not self.training or self.passes % 3 != 1 else x


def _chance(self: Any, x: Tensor) -> Tensor:
    return x + self.block(x) if not self.training or random.random() < 0.5 else x


def _branch(self: Any, x: Tensor) -> Tensor:
    return x + self.block(x) if x.mean() > 0.1 else x


def _list(self: Any, width: int) -> None:
    self.seen = [torch.zeros(())]


def _remember(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.seen.append(x.mean().detach())
    return x - self.seen[-1]


def _tied(self: Any, width: int) -> None:
    self.one, self.two = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
    self.two.weight = self.one.weight


def _both(self: Any, x: Tensor) -> Tensor:
    return self.two(self.one(x))  # type: ignore[no-any-return]


def _again(self: Any, width: int) -> None:
    self.steps = nn.Sequential(*self.encoder)


def _by_steps(self: Any, images: Tensor) -> Tensor:
    return self.head(self.steps(images).relu())  # type: ignore[no-any-return]


def _hooked(self: Any, width: int) -> None:
    self.encoder[1].register_forward_hook(lambda module, given, output: output * 3)


def _kept(self: Any, width: int) -> None:
    kept = self.kept = dict[str, Tensor]()
    self.encoder.register_forward_hook(lambda module, given, output: kept.update(encoder=output))


class Table:
    """A row of numbers, no module, as long as the longest so far, as of positions."""

    def __init__(self) -> None:
        self.made = torch.zeros(0)

    def __call__(self, size: int) -> Tensor:
        if len(self.made) < size:
            self.made = 1 + torch.arange(size) / 100
        return self.made[:size]


@lru_cache(maxsize=8)
def _row(network: nn.Module, size: int) -> Tensor:
    return torch.linspace(0.5, 1, size)


def _longest(self: Any, x: Tensor) -> Tensor:
    if len(self.row) < x.shape[-1]:
        self.row = 1 + torch.arange(x.shape[-1]) / 100
    return x * self.row[: x.shape[-1]]


def refuse(self: Any, state: Any, strict: bool = True, assign: bool = False) -> None:
    raise RuntimeError("\x1b[31mnot this one\x1b[0m")


def _weight_norm(self: Any, width: int) -> None:
    with warnings.catch_warnings():  # that it is old
        warnings.simplefilter("ignore")
        self.block = nn.utils.weight_norm(nn.Conv2d(width, width, 1))


def _spectral_norm(self: Any, width: int) -> None:
    with warnings.catch_warnings():  # that it is old
        warnings.simplefilter("ignore")
        self.block = nn.utils.spectral_norm(nn.Conv2d(width, width, 1))


def _grow(self: Any, x: Tensor) -> Tensor:
    self.mean = torch.cat([self.mean, self.mean])
    return x


def _scripted(channels: int, num_classes: int) -> nn.Module:
    with warnings.catch_warnings():  # that it is old
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Sequential(nn.Conv2d(channels, num_classes, 1)))  # type: ignore[no-any-return]


def _mixed(self: Any, width: int) -> None:
    self.block = nn.Conv2d(width, width, 1).double()


def _compiled(channels: int, num_classes: int, width: int = 3) -> nn.Module:
    return torch.compile(Plain(channels, num_classes, width), backend="eager")  # type: ignore[return-value]


@cache
def _same(channels: int, num_classes: int, width: int = 3) -> nn.Module:
    return Plain(channels, num_classes, width)


@cache
def _encoder(channels: int, *, is_fixed: bool) -> nn.Module:
    with torch.random.fork_rng():  # as one that is read from a file
        return nn.Conv2d(channels, 3, 1).requires_grad_(not is_fixed)


def _wrapped(
    channels: int, num_classes: int, width: int = 3, *, is_fixed: bool = False
) -> nn.Module:
    return nn.Sequential(_encoder(channels, is_fixed=is_fixed), Plain(3, num_classes, width))


def _built(channels: int, num_classes: int, width: int = 3) -> nn.Module:
    inner = choose_architecture(
        "tests.zoo:N_shared", None, channels=channels, num_classes=num_classes
    )
    return build_network(inner)


def _with_gradient(self: Any, images: Tensor) -> Any:
    images.requires_grad_()
    return Plain.forward(self, images)


def _set(name: str, make: Any) -> Any:
    return lambda self, width: self.register_buffer(name, make(width))


class Versioned(nn.Module):
    """A module that has turned its weights' signs round since version 1, as which it takes a state without a version."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, versions: Any, *rest: Any) -> None:
        if versions.get("version", 1) < 2:
            for name in filter(lambda name: name.startswith(prefix), [*state]):
                state[name] = -state[name]
        super()._load_from_state_dict(state, prefix, versions, *rest)


class VersionedConv(Versioned, nn.Conv2d):
    pass


def _versioned(self: Any, width: int) -> None:
    self.block = nn.Sequential(VersionedConv(width, width, 1), nn.ReLU())


NETWORKS: dict[str, tuple[Any, str]] = {
    "plain": (Plain, ""),
    "partial": (partial(Plain, width=2), ""),
    "buffer": (network(_buffer, _mean_in_place), ""),
    "rebound": (network(_buffer, _mean), ""),
    "not persistent": (network(_loose, _shift), ""),
    "not persistent, changing": (network(lambda s, w: _buffer(s, w, persistent=False), _mean), "its mean is in no"),
    "constant": (network(_constant, _shift), ""),
    "tensor, changing": (network(_tensor, _mean), "its mean is in no checkpoint"),
    "made": (network(None, _made), ""),
    "drawn": (network(_drawn, _shift), "its shift is in no checkpoint"),
    "counter": (network(_counter, _skip), ""),
    "counter, predicting": (network(_counter, _ramp), "its passes is in no checkpoint"),
    "huge": (network(_huge, _skip), ""),
    "method": (network(_method), ""),
    "chance": (network(_counter, _chance), ""),
    "branch": (network(_counter, _branch), ""),
    "list": (network(_list, _remember), "its seen is in no checkpoint"),
    "unused": (network(_counter), ""),
    "tied": (network(_tied, _both), ""),
    "two names": (type("Alias", (Plain,), {"add": _again, "forward": _by_steps}), ""),
    "hook": (network(_hooked), ""),
    "remembered": (network(_kept, lambda s, x: x + s.kept["encoder"].mean()), ""),
    "table": (network(lambda s, w: setattr(s, "table", Table()), lambda s, x: x * s.table(x.shape[-1])), ""),
    "cached": (network(None, lambda s, x: x * _row(s, x.shape[-1])), ""),
    "longest": (network(lambda s, w: s.register_buffer("row", torch.zeros(0), persistent=False), _longest), ""),
    "always dropout": (network(None, lambda s, x: F.dropout(x)), "predicts by chance: two passes"),
    "weight norm": (network(_weight_norm, lambda s, x: s.block(x)), ""),
    "spectral norm": (network(_spectral_norm, lambda s, x: s.block(x)), ""),
    "double": (type("Double", (Plain,), {"add": lambda self, width: self.double()}), ""),
    "mixed": (network(_mixed, lambda s, x: s.block(x.double()).float()), ""),
    "compiled": (_compiled, ""),
    "shared": (_wrapped, "0.weight is the same parameter in each network"),
    "shared, fixed": (partial(_wrapped, is_fixed=True), ""),
    "built": (_built, "returns a network that unet_ddp has made, of --model tests.zoo:N_shared; "),
    "gradient of images": (type("Gradient", (Plain,), {"forward": _with_gradient}), ""),
    "same": (_same, "returns the same network at each call"),
    "integers": (network(_set("count", lambda w: torch.zeros(w, dtype=torch.int64))), ""),
    "complex": (network(_set("filter", lambda w: torch.ones(w, dtype=torch.complex64))), "filter is complex64"),
    "infinite": (network(_set("mask", lambda w: torch.full((w,), -torch.inf))), "mask contains nan or inf"),
    "extra": (network(get_extra_state=lambda s: {"v": 3}, set_extra_state=lambda s, x: None), "_extra_state is"),
    "growing": (network(_buffer, _grow), "a pass changes its state mean"),
    "versioned": (network(_versioned, lambda s, x: s.block(x)), ""),
    "orthogonal": (network(lambda s, w: parametrizations.orthogonal(s.encoder[0])), ""),
    "softmax": (type("Ended", (Plain,), {"forward": lambda s, x: Plain.forward(s, x).softmax(1)}), "ends in softmax, so it returns"),
    "scripted": (_scripted, "is or has a module of TorchScript"),
    "lazy": (network(lambda s, w: s.add_module("late", nn.LazyConv2d(2, 1))), "has no size until the first"),
}  # fmt: skip


class Ramp(nn.Module):
    """A loss that counts in a buffer."""

    def __init__(self, count: Any = 0) -> None:
        super().__init__()
        self.keep(count)

    def keep(self, count: Any) -> None:
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return F.cross_entropy(logits, masks, ignore_index=255) * (0.2 + self.calls / 10)


class VersionedRamp(Versioned, Ramp):
    pass


class Draws(nn.Module):
    """A loss by chance, from whole numbers that no float has: a linear congruential generator."""

    def __init__(self) -> None:
        super().__init__()
        self.state = 12345

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        factor = 0.5 + (self.state & 0xFFFF) / 65536
        return F.cross_entropy(logits, masks, ignore_index=255) * factor


class Learnt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        return F.cross_entropy(logits, masks, ignore_index=255) * (-self.scale).exp() + self.scale


class Holder:
    """A callable object, no module, with a tensor."""

    def __init__(self) -> None:
        self.calls: Any = torch.zeros(())

    __call__ = Ramp.forward


def _own(cls: Any, keep: Any) -> Any:
    return type("Kept", (cls,), {"keep": keep})


def cross_entropy(logits: Tensor, masks: Tensor, smoothing: float = 0.0) -> Tensor:
    return F.cross_entropy(logits, masks, ignore_index=255, label_smoothing=smoothing)


def by_chance(logits: Tensor, masks: Tensor) -> Tensor:
    return cross_entropy(logits, masks) * (1 + random.random())


LOSSES: dict[str, tuple[Any, str]] = {
    "function": (cross_entropy, ""),
    "partial": (partial(cross_entropy, smoothing=0.1), ""),
    "chance": (by_chance, ""),
    "buffer": (Ramp, ""),
    "instance": (Ramp(), ""),
    "method": (Ramp().forward, ""),
    "number": (_own(Ramp, lambda self, count: setattr(self, "calls", 0)), ""),
    "tensor": (_own(Ramp, lambda self, count: setattr(self, "calls", torch.zeros(()))), "in no checkpoint"),
    "object": (Holder(), "in no checkpoint"),
    "learnt": (Learnt, ""),
    "versioned": (VersionedRamp, ""),
    "draws": (Draws, ""),
}  # fmt: skip


class Start:
    """A callback that keeps the state that the last run of this process began with."""

    state: ClassVar[dict[str, Any]] = {}

    def __init__(self, run: Any) -> None:
        Start.state = copy.deepcopy(run.state.state_dict())

    def close(self) -> None:
        """Do nothing: a callback without any method is refused."""


globals().update({f"N_{k}".replace(" ", "_").replace(",", ""): v[0] for k, v in NETWORKS.items()})
globals().update({f"L_{k}": v[0] for k, v in LOSSES.items()})
