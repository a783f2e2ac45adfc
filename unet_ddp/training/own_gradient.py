"""Tensors that the gradient of a part of the user's own reaches: each must be a parameter, or nothing would train it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from unet_ddp.errors import UserError
from unet_ddp.training.own_state import holders

_LEAF = "torch::autograd::AccumulateGrad"  # torch's name of a step without a further one


def leaves_by_distance(output: Tensor) -> Iterator[list[Tensor]]:
    """Yield the tensors that a gradient of `output` ends at, in lists of one distance, the nearest first."""
    steps: dict[Any, None] = dict.fromkeys(filter(None, [output.grad_fn]))
    seen: dict[Any, None] = {}
    while steps:
        seen |= steps  # which also keeps torch from making other objects for the same steps
        leaves = [step.variable for step in steps if step.name() == _LEAF]
        if leaves:
            yield leaves
        inner = [each for step in steps for each, _ in step.next_functions]
        steps = {each: None for each in inner if each is not None and each not in seen}


def check_trained(
    where: str, part: nn.Module, compute: Callable[[], Tensor], given: Tensor | None = None
) -> Tensor:
    """Return what `compute` does with `part`, after a check that each tensor with a gradient is a parameter of it.

    A tensor that each call makes again is not kept, and one may have a gradient for checkpointing only.

    Raises:
        UserError: one is kept, and is no parameter.
    """
    output = compute()
    known = [*part.parameters(), *([] if given is None else [given])]
    loose = _list_loose(output, known)
    if not loose:
        return output
    again = compute()
    for each in loose:
        each.grad = None
    torch.autograd.backward(again, torch.ones_like(again))
    found = [each for each in _list_loose(again, [*known]) if each.grad is not None]
    part.zero_grad(set_to_none=True)
    for each in found:
        each.grad = None
        if any(each is other for other in loose):
            raise UserError(
                f"{where}: nothing would train {_name(part, each)}, which is no parameter of a torch.nn.Module; use "
                "nn.Parameter, nn.ParameterList or nn.ModuleList, or requires_grad_(False) if it is constant"
            )
    return output


def _list_loose(output: Tensor, known: list[Tensor]) -> list[Tensor]:
    places = set(map(id, known))
    return [each for each in chain(*leaves_by_distance(output)) if id(each) not in places]


def _name(part: nn.Module, tensor: Tensor) -> str:
    for _, holder in holders(part):
        for name, value in {**getattr(holder, "_buffers", {}), **vars(holder)}.items():
            if any(each is tensor for each in _list_tensors(value)):
                return f"{name} of {type(holder).__name__}"
    return f"a tensor {tuple(tensor.shape)} outside of it"


def _list_tensors(value: object, depth: int = 5) -> Iterator[Tensor]:
    """Yield the tensors of an attribute, also those in containers and modules."""
    inner: Any = ()
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, (list, tuple)):
        inner = value
    for each in inner if depth else ():
        yield from _list_tensors(each, depth - 1)
