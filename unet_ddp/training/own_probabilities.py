"""Probabilities that a network of the user's own returns in place of logits, found by trying other weights."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from unet_ddp.errors import UserError
from unet_ddp.training.own_gradient import leaves_by_distance
from unet_ddp.training.step import seed_all

_ACTIVATIONS = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}  # by torch's names
_VIEWS = ("Slice", "Alias", "ToCopy", "View", "Clone")  # beginnings of names
# Times the weights of the last layer; large ones only for what seems to be probabilities.
_FACTORS = 1, 100
_LEAST = 0.1  # added to each weight: also to those of 0
_ERROR = 0.05  # of a sum of 1
_OVERSHOOT = 0.5  # of shares that were resized with mode="bicubic"


def find_activation(output: Tensor) -> str | None:
    """Return "softmax" or "sigmoid" if torch says that `output`, or what it is a view of, comes from one."""
    step: Any = output.grad_fn
    while step is not None and step.name().startswith(_VIEWS):
        step = step.next_functions[0][0]
    return _ACTIVATIONS.get(step.name()) if step is not None else None


def list_last(network: nn.Module, logits: Tensor) -> list[Tensor]:
    """Return the trained parameters of the last layer; all, if torch does not say which these are."""
    trained: list[Tensor] = [each for each in network.parameters() if each.requires_grad]
    places = set(map(id, trained))
    for leaves in leaves_by_distance(logits):
        if found := [each for each in leaves if id(each) in places]:
            return found
    return trained


def check_unbounded(where: str, network: nn.Module, example: Tensor, last: list[Tensor]) -> None:
    """Refuse probabilities, in the present mode; parameters `last` are changed.

    The user's code never sees such weights in training: it may raise an exception, and is then taken as it is.

    Raises:
        UserError: with other weights, too, classes add up to 1, or so do p(logits) and p(-logits) as of a sigmoid.
    """
    first = [each.clone() for each in last]
    for factor in _FACTORS:
        weights = [factor * (each.abs() + _LEAST) * torch.randn_like(each).sign() for each in first]
        outputs, activations = [], set()
        with suppress(Exception):  # of code that is not ours
            for sign in (1, -1):
                for each, value in zip(last, weights, strict=True):
                    each.copy_(sign * value)
                seed_all(1)
                with torch.enable_grad():
                    output = network(example.clone())
                activations.add(find_activation(output))
                outputs.append(output.detach().double())
        if len(outputs) < 2:
            return
        # Large weights make an exponential overflow: then the small ones have decided.
        are_shares = _are_shares(torch.stack(outputs), may_be_empty=factor > 1)
        if None in activations and not are_shares:
            return
    mode = "training" if network.training else "prediction"
    raise UserError(
        f"{where}: returns probabilities in {mode}: of 0 to 1, also with larger weights in the last layer; return the "
        "logits before softmax or sigmoid: the loss and the prediction apply it themselves"
    )


def _are_shares(outputs: Tensor, *, may_be_empty: bool) -> bool:
    """Return whether outputs (2, N, C, H, W), of weights of either sign, add up to 1.

    Pixels that are not finite are left out; `may_be_empty` is the answer if no other is left.
    """
    pixels = outputs.isfinite().all(2).all(0)
    if not pixels.any():
        return may_be_empty
    found = outputs.movedim(2, -1)[:, pixels]  # (2, pixels, C)
    is_within = bool(((found + _OVERSHOOT >= 0) & (found - _OVERSHOOT <= 1)).all())
    sums = found.sum(-1), found.sum(0)
    return is_within and any(bool(((each - 1).abs() < _ERROR).all()) for each in sums)
