"""A loss of the user's own: a term of sums and value, or any function of logits and masks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unet_ddp.config import OptimizationConfig
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.errors import UserError, shorten, words_of
from unet_ddp.network.state_dicts import check_sized, load_state
from unet_ddp.plugins import find
from unet_ddp.training.losses import Batch, SegmentationLoss, Term
from unet_ddp.training.own_functions import remember_attributes
from unet_ddp.training.own_gradient import check_trained
from unet_ddp.training.own_holders import Numbers, holders
from unet_ddp.training.own_methods import check_methods
from unet_ddp.training.own_state import (
    check_saved,
    check_unscripted,
    draw_step,
    find_changed,
    keeping,
    read_unsaved,
)
from unet_ddp.training.step import seed_all

# Columns of metrics.csv that are others', and the beginnings of those of scores.
_TAKEN = {
    "epoch", "step", "learning_rate", "loss", "threshold", "calibration_error", "skipped_steps",
    "images_per_second", "data_wait", "seconds", "cross_entropy", "focal_loss",
}  # fmt: skip
_SCORES = ("validation_", "dice_", "iou_")
_SIDES = 64, 64  # pixels: height, width
_PATCHES = 8  # of large masks, along each side
_FARTHEST = 0.25  # from a sum, of it: a mean or a maximum is farther, a sum of random pixels is not


class MeanOverRanks(nn.Module):
    """The mean over ranks of a function (logits, masks) -> loss, each on the images of its rank.

    It is not the loss of the global batch: the run depends on the number of processes.
    """

    column: ClassVar[str] = "own_loss"

    def __init__(self, name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.name, self.function = name, function  # a module moves to the device with the loss

    @property
    def note(self) -> str:
        """A line for the user."""
        return (
            f"--loss {self.name}: its mean over processes is used, so the run depends on their number; "
            "a loss with sums does not (docs/losses.md)"
        )

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        """Return the value (1,), and the number of processes (1,)."""
        value = self._compute(batch.logits, batch.masks)
        if not isinstance(value, Tensor) or value.ndim:
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(
                f"--loss {self.name}: returns {found}; expected one number, a tensor ()"
            )
        return {"value": value.view(1), "processes": value.new_ones(1)}

    def _compute(self, logits: Tensor, masks: Tensor) -> object:
        """Return what the function does; refuse one that takes other masks, but none with pixels to ignore."""
        try:
            # Of its own, as it may change them in place: other terms have the same ones.
            return self.function(logits.clone(), masks.clone())
        except Exception as error:  # of code that is not ours
            is_ignored = masks == IGNORE_ID
            if masks.is_cuda or not is_ignored.any():  # after an error a GPU computes no more
                raise
            if not self._takes(logits, masks.masked_fill(is_ignored, 0)):
                raise  # with its cause
            raise UserError(
                f"--loss {self.name}: {type(error).__name__}: {words_of(error).rstrip('.')}; pixels to ignore, as the edges of "
                "turned images, are 255 in masks: leave them out, as by ignore_index=255 (docs/losses.md)"
            ) from None

    def _takes(self, logits: Tensor, masks: Tensor) -> bool:
        try:
            self.function(logits.clone(), masks)
        except Exception:  # of code that is not ours
            return False
        return True

    def value(self, sums: dict[str, Tensor], weights: Tensor) -> Tensor:
        """Return the mean ()."""
        return (sums["value"] / sums["processes"]).squeeze()


def make_own_term(name: str, options: OptimizationConfig) -> Term:
    """Return a term of the user's own.

    A class with `sums` and `value` is called with the options. Another `nn.Module` class is called without
    arguments, and a function of two arguments is taken as it is.

    Raises:
        UserError: it can't be made, or its column's name is missing or taken.
    """
    kind = find("losses", name)
    check_unscripted(f"--loss {name}", kind)  # it has no signature
    try:
        if _is_plain(kind):
            # Of an object a copy: another run in this process begins with it as it is now.
            function: Any = kind() if inspect.isclass(kind) else copy.deepcopy(kind)
            remember_attributes(function)
            called = function.forward if isinstance(function, nn.Module) else function
            inspect.signature(called).bind(None, None)  # of logits and masks
            return MeanOverRanks(name, function)
        term: Term = kind(options)
        column: object = term.column
        inspect.signature(term.sums).bind(None)
        inspect.signature(term.value).bind(None, None)
    except Exception as error:  # of code that is not ours
        raise UserError(
            f"--loss {name}: {type(error).__name__}: {words_of(error)}; see docs/losses.md"
        ) from None
    if not isinstance(column, str) or not column or column in _TAKEN or column.startswith(_SCORES):
        raise UserError(
            f"--loss {name}: its column is {shorten(column)}; it must be a name that metrics.csv lacks"
        )
    return term


def _is_plain(kind: Any) -> bool:
    """Return whether a loss is a function of logits and masks, or an nn.Module that is one."""
    if inspect.isclass(kind):
        return issubclass(kind, nn.Module) and not hasattr(kind, "sums")
    if isinstance(kind, nn.Module):
        return True
    needed = 0
    for each in inspect.signature(kind).parameters.values():
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD:
            needed += 2 if each.kind is each.VAR_POSITIONAL else 1  # *args: as many as it is given
    return needed > 1


def try_loss(
    loss: SegmentationLoss, num_classes: int, device: torch.device, sides: Sequence[int] = _SIDES
) -> tuple[SegmentationLoss, list[str]]:
    """Compute a loss and its gradient on random logits; return a new one, and lines for the user.

    So a fault ends the run before it has a folder, and the trial leaves no trace. `sides` is (height, width)
    of the training images: a loss may have weights of that size, or need large images or objects. They are tried
    only if small ones raise, as large ones take seconds.

    Raises:
        UserError: it is no number (), has no gradient, or sums or a state that can't be added up, saved or made again.
            An exception of the user's code is not changed.
    """
    name = loss.options.loss
    _check_state(name, loss)
    functions = [term.function for term in loss.own_terms.values()]
    raised: Exception | None = None
    try:
        with keeping(*functions):  # an object stays the same one
            _try_size(name, loss, *_draw(num_classes, _SIDES, _SIDES[0], device))
    except UserError:
        raise
    except Exception as error:  # of code that is not ours
        raised = error
    if raised:  # outside of except: a second traceback alone is shown
        with keeping(*functions):
            _try_size(name, loss, *_draw(num_classes, sides, _PATCHES, device))
    new = type(loss)(loss.options).to(device)
    for key, term in new.own_terms.items():
        term.lengths = loss.own_terms[key].lengths
    return new, [each.note for each in functions if isinstance(each, MeanOverRanks)]


def _draw(
    num_classes: int, sides: Sequence[int], patches: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return random logits (2, num_classes, *sides), and masks of `patches` of one class along each side."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, num_classes, *sides, generator=generator).to(device).requires_grad_()
    drawn = torch.randperm(2 * patches**2, generator=generator) % num_classes  # each of them
    rows, columns = (torch.arange(side) * patches // side for side in sides)
    masks = drawn.view(2, patches, patches)[:, rows][:, :, columns]
    return logits, masks.to(device)


def _try_size(name: str, loss: SegmentationLoss, logits: Tensor, masks: Tensor) -> None:
    one = logits.new_ones(())  # of a network's logits, too, a gradient can be computed once

    def compute() -> Tensor:
        total: Tensor = loss(logits * one, masks).total
        return total

    total = check_trained(f"--loss {name}", loss, compute, logits)
    if total.ndim:
        raise UserError(
            f"--loss {name}: its value is {tuple(total.shape)}; expected one number, a tensor ()"
        )
    if not total.requires_grad:
        raise UserError(f"--loss {name}: has no gradient; compute it from the logits with torch")
    torch.autograd.backward(total)
    loss.zero_grad(set_to_none=True)
    functions = [term.function for term in loss.own_terms.values()]
    has_sums = any(not isinstance(function, MeanOverRanks) for function in functions)
    with torch.no_grad():
        _check_sums(name, loss, logits, masks)
        for each in (0, logits.shape[1] - 1) if has_sums else ():  # a class alone
            loss(logits, torch.full_like(masks, each))
        _compare_again(name, loss, logits, masks)


def _check_state(name: str, loss: SegmentationLoss) -> None:
    """Check that the state dict can be saved, and that each parameter is in it, and so will be trained."""
    check_unscripted(f"--loss {name}", loss)
    check_methods(f"--loss {name}", loss)
    check_sized(f"--loss {name}", loss)
    check_saved(f"--loss {name}", loss.state_dict())
    for _, holder in holders(loss):
        for attribute, value in vars(holder).items():
            if isinstance(value, nn.Parameter):
                raise UserError(
                    f"--loss {name}: nothing would train its parameter {attribute}; derive the class from "
                    "torch.nn.Module (docs/losses.md)"
                )


def _check_sums(name: str, loss: SegmentationLoss, logits: Tensor, masks: Tensor) -> None:
    """Check that the sums of two images are what each has, added up, as ranks do."""
    weights = logits.new_ones(logits.shape[1])
    for key, term in loss.own_terms.items():
        if isinstance(term.function, MeanOverRanks):
            continue
        whole, first, second = (
            term.sums(loss.split(logits[part], masks[part], weights)[key == "pixel"])
            for part in (slice(0, 2), slice(0, 1), slice(1, 2))
        )
        for each, found in whole.items():
            added = first[each] + second[each]
            if not torch.allclose(found.double(), added.double(), rtol=_FARTHEST, atol=1e-6):
                raise UserError(
                    f"--loss {name}: {each} of two images is {found[0]:.3g}, but {added[0]:.3g} as the sum of each: "
                    "return sums, which ranks add up, and divide in value (docs/losses.md)"
                )


def _compare_again(name: str, loss: SegmentationLoss, logits: Tensor, masks: Tensor) -> None:
    """Check that a new loss with the same state dict and numbers gives the same next value, and so does this one again."""
    counted = Numbers(loss.own_terms).read()
    state = draw_step(loss)
    with torch.random.fork_rng([]):
        torch.manual_seed(1)  # what a new one draws differs
        twin = type(loss)(loss.options).to(logits.device)
    values, unsaved = [], []
    others = torch.arange(logits.shape[1]).to(logits).view(1, -1, 1, 1) - logits.flip(0).detach()
    for each in (loss, twin, loss):
        try:
            load_state(each, state)
        except RuntimeError as error:  # of names and shapes that a call has changed
            reason = words_of(error)[:200]
            raise UserError(
                f"--loss {name}: made again, it does not take its own state dict ({reason}); make its buffers in __init__"
            ) from None
        Numbers(each.own_terms).load_state_dict(counted)
        seed_all(0)
        with torch.enable_grad():
            values.append(each(others.requires_grad_(), masks.flip(0)).total.detach())
        unsaved.append([read_unsaved(term.function) for term in each.own_terms.values()])
    if not torch.allclose(values[0], values[1], equal_nan=True):
        raise UserError(
            f"--loss {name}: made again with its state dict, it gives another value: what it keeps from call to call is in no "
            "checkpoint; make it a buffer of a torch.nn.Module (docs/losses.md)"
        )
    changed = "".join(map(find_changed, unsaved[0], unsaved[2])).replace("its function.", "its ")
    if changed or not torch.allclose(values[0], values[2], equal_nan=True):
        raise UserError(
            f"--loss {name}: {changed or 'what it computes with'} is kept from call to call and is in no checkpoint, so a "
            "resumed run would go on without it; make it a buffer of a torch.nn.Module, or leave it out (docs/losses.md)"
        )
