"""A network of the user's own is tried before the first step: it must be saved, read and built again as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from unet_ddp.errors import UserError, words_of
from unet_ddp.network.precision import image_type
from unet_ddp.network.state_dicts import load_state
from unet_ddp.training.own_gradient import check_trained
from unet_ddp.training.own_holders import Numbers, holders
from unet_ddp.training.own_probabilities import check_unbounded, find_activation, list_last
from unet_ddp.training.own_state import (
    check_saved,
    check_unscripted,
    draw_step,
    find_changed,
    keeping,
    read_unsaved,
)
from unet_ddp.training.step import seed_all

_ADVICE = "see docs/own_parts.md, State"
_CLOSE = 1e-4  # of the largest value: a GPU adds in any order


class AcrossRanks(TorchFunctionMode):
    """Refuses batch norm that a network computes itself, of the images of one rank alone."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Return what `func` returns, or refuse it."""
        given = kwargs or {}
        if func is F.batch_norm and (given.get("training") or True in args[5:6]):
            raise UserError(
                "--batch-norm global: F.batch_norm in forward knows one process; use nn.BatchNorm2d in --model, or "
                "--batch-norm local"
            )
        return func(*args, **given)


def try_network(
    name: str, network: nn.Module, build: Callable[[], nn.Module], example: Tensor
) -> nn.Module:
    """Return a second `network` with the same state, after a check that it computes the same; both are as new.

    A pass in training changes what it changes. The copy, with the state dict of that moment, must then compute the same,
    in prediction and in training: else a checkpoint would not have all of the network.

    Args:
        name: of the network, for messages.
        network: new, or with given weights, on the device.
        build: returns another one, with new weights.
        example: images (N, C, H, W), as preprocessed ones, on the device.

    Raises:
        UserError: the copy differs, or the state can't be saved, loaded or averaged.
    """
    where = f"--model {name}"
    _check_parameters(where, network)
    example = example.to(image_type(network))
    numbers, seed = Numbers({"model": network}), torch.initial_seed()
    with keeping(network):
        seed_all(seed + 1)  # what is drawn anew differs
        twin = build()
    _check_apart(where, network, twin)
    _load(where, twin, network.state_dict())
    with keeping(network, twin), torch.no_grad():
        before = dict(network.state_dict(keep_vars=True))
        last = _check_logits(where, network, example)
        _check_same_kind(where, before, network.state_dict(keep_vars=True))
        _load(where, twin, network.state_dict())
        counted = numbers.state_dict()
        # A prediction has no numbers, and a resumed run is not one that has predicted.
        with keeping(twin):
            _compare(where, network, twin, example, is_training=False)
        Numbers({"model": twin}).load_state_dict(counted)
        _compare(where, network, twin, example, is_training=True)
        _check_modes(where, network, example, last)
    return twin


def _check_parameters(where: str, network: nn.Module) -> None:
    check_unscripted(where, network)
    if not any(p.is_floating_point() and p.requires_grad for p in network.parameters()):
        raise UserError(f"{where}: has no parameters to train")
    check_saved(where, network.state_dict())


def _check_apart(where: str, network: nn.Module, twin: nn.Module) -> None:
    """Check that no parameter is in both and is trained: a fixed one may be, as of an encoder."""
    others = set(map(id, twin.parameters()))
    for name, each in network.named_parameters():
        if each.requires_grad and id(each) in others:
            raise UserError(
                f"{where}: {name} is the same parameter in each network that it returns, so a second run would go on "
                "with the weights of the first; make new modules in each call"
            )


@torch.enable_grad()
def _check_logits(where: str, network: nn.Module, example: Tensor) -> list[Tensor]:
    """Return the parameters of the last layer, after a check of the logits' gradient, and that they end in no softmax."""
    # Each pass has its own images: a network may ask for their gradient, as for checkpointing.
    output = check_trained(where, network, lambda: network(example.clone()))
    if not output.requires_grad:
        raise UserError(
            f"{where}: its logits have no gradient, so nothing would train it; compute them without torch.no_grad() and "
            "detach()"
        )
    if found := find_activation(output):
        raise UserError(
            f"{where}: ends in {found}, so it returns probabilities; return the logits before it: the loss and the "
            "prediction apply it themselves"
        )
    last = list_last(network, output)
    torch.autograd.backward(output, torch.ones_like(output))
    sparse = [
        name for name, p in network.named_parameters() if p.grad is not None and p.grad.is_sparse
    ]
    network.zero_grad(set_to_none=True)
    if sparse:
        raise UserError(
            f"{where}: the gradient of {sparse[0]} is sparse, which AdamW does not take; leave out sparse=True, as of "
            "nn.Embedding"
        )
    return last


def _check_modes(where: str, network: nn.Module, example: Tensor, last: list[Tensor]) -> None:
    """Check that neither mode returns probabilities, and leave the network as it was."""
    for is_training in (True, False):
        with _restoring(network):
            network.train(is_training)
            check_unbounded(where, network, example, last)


def _check_same_kind(where: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Check that a pass has kept the names and shapes of the state, and the parameters themselves."""
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if isinstance(old, nn.Parameter) and old is not new:
            raise UserError(
                f"{where}: a pass replaces the parameter {name}, so nothing would train it; make it in __init__"
            )
        if old is None or new is None or (old.shape, old.dtype) != (new.shape, new.dtype):
            raise UserError(
                f"{where}: a pass changes its state {name} from {_describe(old)} to {_describe(new)}; a checkpoint "
                "of it fits no new network: give it its shape and type in __init__"
            )


def _describe(tensor: Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _load(where: str, twin: nn.Module, state: Mapping[str, Any]) -> None:
    try:
        load_state(twin, state)
    except Exception as error:  # of names, shapes and hooks that are not ours
        raise UserError(
            f"{where}: built again, it does not take its own state dict ({_shorten(error)}); {_ADVICE}"
        ) from None


def _shorten(error: Exception) -> str:
    return words_of(error)[:200]


def _compare(
    where: str, network: nn.Module, twin: nn.Module, example: Tensor, *, is_training: bool
) -> None:
    outputs, unsaved = _pass_again(where, network, twin, example, is_training=is_training)
    if not outputs[0].isfinite().all():
        raise UserError(
            f"{where}: its logits contain nan or infinity for images of random numbers; look for a division, a log or a "
            "root of 0"
        )
    built, again, *drawn = (_differ(outputs[0], other) for other in outputs[1:])
    changed = find_changed(unsaved[0], unsaved[2])  # though the pass was the same
    if built:
        what = "trains on as another one" if is_training else "predicts otherwise"
        raise UserError(
            f"{where}: built again with its state dict, it {what}: {changed or _name_loose(network, twin)} is in no "
            f"checkpoint; make it a buffer by register_buffer; {_ADVICE}"
        )
    if changed or again:
        raise UserError(
            f"{where}: {changed or 'what it computes with'} is kept from pass to pass and is in no checkpoint, so a "
            f"resumed run would go on without it; make it a buffer by register_buffer, or leave it out; {_ADVICE}"
        )
    if any(drawn):
        raise UserError(
            f"{where}: predicts by chance: two passes of one image differ; use nn.Dropout, or "
            "F.dropout(..., training=self.training)"
        )


def _pass_again(
    where: str, network: nn.Module, twin: nn.Module, example: Tensor, *, is_training: bool
) -> tuple[list[Tensor], list[dict[str, list[object]]]]:
    """Return the outputs of the network, its twin and the network, and what each has then kept; then by other chance.

    Without a gradient, what a network keeps is no tensor of inference mode, which no later step could take.
    """
    state = draw_step(network)
    numbers = Numbers({"model": network})
    counted, outputs, unsaved = numbers.read(), [], []
    seeds = (1, 1, 1) if is_training else (1, 1, 1, 2)
    with _restoring(network, twin):
        for each, seed in zip((network, twin, network, network), seeds, strict=False):
            load_state(each, state)
            if each is network:
                numbers.load_state_dict(counted)
            each.train(is_training)
            seed_all(seed)
            with torch.enable_grad() if is_training else torch.no_grad():
                try:
                    outputs.append(each(example.flip(0) * 0.5).detach().double())
                except Exception as error:  # of code that is not ours
                    if each is network:
                        raise
                    raise UserError(
                        f"{where}: built again with its state dict and numbers, a pass fails "
                        f"({_shorten(error)}); a number may be of a tensor that is in no checkpoint: use the "
                        f"tensor's own size; {_ADVICE}"
                    ) from None
            unsaved.append(read_unsaved(each))
    return outputs, unsaved


@contextmanager
def _restoring(network: nn.Module, *others: nn.Module) -> Iterator[None]:
    """Give the state of `network`, as it was, back to it and to `others`, and its modes to it."""
    modes = [(module, module.training) for module in network.modules()]
    first = {name: value.clone() for name, value in network.state_dict().items()}
    try:
        yield
    finally:
        for each in (network, *others):
            load_state(each, first)
        for module, mode in modes:
            module.training = mode


def _differ(one: Tensor, other: Tensor) -> bool:
    return not bool((one - other).abs().max() <= _CLOSE * one.abs().max())


def _name_loose(network: nn.Module, twin: nn.Module) -> str:
    """Return the first attribute by which two networks with the same state dict differ."""
    others = dict(holders(twin))
    saved = set(network.state_dict())
    for path, module in holders(network):
        loose = {**vars(module), **module._buffers}
        for name, value in loose.items():
            mine = f"{path}.{name}".lstrip(".")
            if name.startswith("_") or name == "training" or mine in saved:
                continue
            other = getattr(others.get(path), name, None)
            if not _is_same(value, other):
                return f"its {mine}"
    return "what it computes with"


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return value is other or (value.shape == other.shape and torch.equal(value, other))
    if isinstance(value, (int, float)):
        return bool(value == other)
    return value is other or not isinstance(value, (Tensor, list, dict))
