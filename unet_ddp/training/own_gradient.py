"""Tensors that the gradient of a part of the user's own reaches: each must be a parameter, or nothing would train it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from unet_ddp.errors import UserError
from unet_ddp.training.own_holders import holders

_LEAF = "torch::autograd::AccumulateGrad"  # torch's name of a step without a further one
_Steps = dict[Any, None]  # torch has no type of them
_OF_MODULES = {*vars(nn.Module())}  # names
_OF_FREED = "backward through the graph a second time", "modified by an inplace operation"


def steps_by_distance(output: Tensor) -> Iterator[_Steps]:
    """Yield the steps of a gradient of `output`, in groups of one distance, the nearest first."""
    steps: _Steps = dict.fromkeys(filter(None, [output.grad_fn]))
    seen: _Steps = {}
    while steps:
        seen |= steps  # which also keeps torch from making other objects for the same steps
        yield steps
        inner = [each for step in steps for each, _ in step.next_functions]
        steps = {each: None for each in inner if each is not None and each not in seen}


def leaves_by_distance(output: Tensor) -> Iterator[list[Tensor]]:
    """Yield the tensors that a gradient of `output` ends at, in lists of one distance, the nearest first."""
    for steps in steps_by_distance(output):
        if leaves := [step.variable for step in steps if step.name() == _LEAF]:
            yield leaves


def check_trained(
    where: str, part: nn.Module, compute: Callable[[], Tensor], given: Tensor | None = None
) -> Tensor:
    """Return what `compute` does with `part`, after a check that each tensor with a gradient is a parameter of it.

    A tensor that each call makes again is not kept, and one may have a gradient for checkpointing only.

    Raises:
        UserError: one is kept, and is no parameter; or its next gradient would be that of earlier calls, too.
    """
    output = _check_detached(where, part, compute)
    known = [*part.parameters(), *([] if given is None else [given])]
    loose = _list_loose(output, known)
    if not loose:
        return output
    again = compute()
    for each in loose:
        each.grad = None
    _compute_gradient(again)
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


def _check_detached(where: str, part: nn.Module, compute: Callable[[], Tensor]) -> Tensor:
    """Return an output, after a check that a second gradient can be computed if `part` keeps what had the first.

    One that is kept to be looked at, or made again in each call, is taken.
    """
    output = compute()
    kept = {
        tensor.grad_fn: f"{name} of {type(holder).__name__}"
        for _, holder in holders(part)
        for name, value in {**vars(holder), **getattr(holder, "_buffers", {})}.items()
        for tensor in (_list_tensors(value) if name not in _OF_MODULES else ())
        if tensor.grad_fn is not None
    }
    if not kept:
        return output
    _compute_gradient(output)
    again = compute()
    try:
        _compute_gradient(again)
    except RuntimeError as error:
        if not any(each in str(error) for each in _OF_FREED):
            raise
        found = [kept[each] for each in chain(*steps_by_distance(again)) if each in kept]
        name = [*found, *kept.values()][0]
        raise UserError(
            f"{where}: {name} keeps the gradient of the call before, so the second step would "
            "fail; keep the value without it, by .detach() or in torch.no_grad()"
        ) from None
    part.zero_grad(set_to_none=True)
    return compute()


def _compute_gradient(output: Tensor) -> None:
    if output.requires_grad:  # the caller names one that has none
        torch.autograd.backward(output, torch.ones_like(output))


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
