"""Networks of others, for images of any size: also those that take sizes of a multiple alone."""

from __future__ import annotations

import copyreg
import inspect
from contextlib import suppress
from typing import Any, SupportsIndex, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from unet_ddp.errors import UserError, shorten, words_of
from unet_ddp.network.state_dicts import check_sized

_STRIDES = tuple(2**k for k in range(11))
_FIELDS = "stride", "smallest", "largest", "_logit_channels", "_part_name"
_Fields = tuple[tuple[str, object], ...]  # their names and values


class AnySize(nn.Module):
    """A mixin that pads images before a network's class and crops the logits back.

    A base class rather than a wrapper, so that the parameters keep their names.
    """

    stride = 32
    """Total downsampling factor, a power of two; sizes are padded to its multiples."""
    smallest = 1
    """Side of the smallest image, a multiple of the stride or 1."""
    largest = 0
    """Side of the only size that the network takes, which smaller images are padded to; 0: it takes any."""
    _logit_channels: int  # names that a network of the user's own does not use
    _part_name: str

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes, H, W) of `images` (N, channels, H, W)."""
        height, width = images.shape[-2:]
        rows, columns = -height % self.stride, -width % self.stride
        if self.smallest > 1:
            rows = cast(int, torch.sym_max(rows, self.smallest - height))
            columns = cast(int, torch.sym_max(columns, self.smallest - width))
        if 0 < self.largest < max(height, width):
            raise UserError(
                f"{self._part_name}: takes images of {self.largest}x{self.largest} at most, not {width}x{height}; "
                f"train with --crop-size {self.largest}, predict with --tile {self.largest}, or use another encoder"
            )
        # Exported, the network is for any size, whatever the example's needs: always pad.
        is_exporting = torch.compiler.is_exporting()
        if is_exporting or rows or columns:
            images = F.pad(images, (0, columns, 0, rows))
        logits: Any = super().forward(images)
        # Not len(images): a trace would take its number for that of all batches.
        shape = (images.shape[0], self._logit_channels, *images.shape[-2:])
        found: object = type(logits).__name__
        if isinstance(logits, Tensor):
            found = tuple(logits.shape)
        if not is_exporting and found != shape:
            raise UserError(
                f"{self._part_name}: returns {found} for images {tuple(images.shape)}; expected logits {shape}"
            )
        return cast(Tensor, logits[..., :height, :width])

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        made = super().__reduce_ex__(protocol)
        assert isinstance(made, tuple)  # a module's
        if made[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return made  # as the network's own class says, that of torch.compile too
        kind = type(self)  # which no module has
        fields = tuple((name, getattr(kind, name)) for name in _FIELDS)
        return _make_blank, (kind.__bases__[1], fields), *made[2:]


_classes: dict[tuple[type[nn.Module], _Fields], type[nn.Module]] = {}
"""By a network's class and the fields, the classes that were made: a copy has the same one."""


def _fit_class(kind: type[nn.Module], fields: _Fields) -> type[nn.Module]:
    if (kind, fields) not in _classes:
        _classes[kind, fields] = type(kind.__name__, (AnySize, kind), dict(fields))
    return _classes[kind, fields]


def _make_blank(kind: type[nn.Module], fields: _Fields) -> nn.Module:
    made = _fit_class(kind, fields)
    return made.__new__(made)


def fit_any_size(network: nn.Module, name: str, num_classes: int, **needs: int) -> nn.Module:
    """Return `network` as one for images of any size; `needs` are fields of `AnySize`.

    `name` is for messages.
    """
    known = {name: getattr(AnySize, name, None) for name in _FIELDS}
    fields = {**known, "_logit_channels": num_classes, "_part_name": name, **needs}
    network.__class__ = _fit_class(type(network), tuple(fields.items()))
    return network


def make_own(
    name: str, make: Any, channels: int, num_classes: int, settings: dict[str, Any]
) -> nn.Module:
    """Return a network of the user's own, for images of any size, by its function.

    Raises:
        UserError: the function fails, or returns something else.
    """
    try:
        network = make(channels, num_classes, **settings)
        if isinstance(network, nn.Module):
            with suppress(ValueError):  # a traced one has no signature
                inspect.signature(network.forward).bind(None)  # one argument: the images
    except Exception as error:  # of code that is not ours
        reason = f"{type(error).__name__}: {words_of(error)}"
        raise UserError(f"--model {name}: {reason}; see docs/own_parts.md") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"--model {name}: returns {shorten(network)}, no torch.nn.Module")
    if isinstance(network, AnySize):
        if network._part_name == f"--model {name}":  # as it was returned
            raise UserError(
                f"--model {name}: returns the same network at each call; make a new one in each"
            )
        raise UserError(
            f"--model {name}: returns a network that unet_ddp has made, of {network._part_name}; name that one, or call "
            "its class or function"
        )
    check_sized(f"--model {name}", network)
    _count_batches(network)
    stride = getattr(network, "stride", AnySize.stride)
    if stride not in _STRIDES:
        raise UserError(
            f"--model {name}: its stride is {shorten(stride)}; it must be a power of two"
        )
    return fit_any_size(network, f"--model {name}", num_classes, stride=stride)


def _count_batches(network: nn.Module) -> None:
    """Give the norms with averages that count no batches a count: torch loads no state without one."""
    for module in network.modules():
        if not isinstance(module, _NormBase) or not module.track_running_stats:
            continue
        if module.num_batches_tracked is None:
            module.num_batches_tracked = torch.tensor(0)
            module.momentum = module.momentum or 0.0  # torch's None is 0 if it does not count
