"""Start a network from the weights of one with other classes, other bands or another decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from unet_ddp.checkpoints.weights import (
    SavedModel,
    State,
    build_blank,
    check_weights,
    find_model,
    read_model,
)
from unet_ddp.config import TrainConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError, count_of, join_some
from unet_ddp.extras.transfer.pretrained import find_packaged, read_packaged
from unet_ddp.files import as_path
from unet_ddp.network.architecture import Architecture, full_name, in_encoder, trust
from unet_ddp.network.state_dicts import with_versions
from unet_ddp.plugins import is_own

_SHOWN = 3  # names in a line


@dataclass(frozen=True)
class GivenWeights:
    """The weights of ``--load`` or of the file of ``--encoder-weights``, for a new run."""

    model: SavedModel
    source: Path
    is_whole: bool
    """False for an encoder's alone."""

    def describe(
        self, architecture: Architecture, preprocessing: Preprocessing
    ) -> tuple[Architecture, Preprocessing, list[str]]:
        """Return the network and its input as far as the file describes them, and a line for the user.

        `architecture` and `preprocessing` come from the flags and the data.
        """
        described, other = self.model.architecture, self.model.preprocessing
        if described is None:
            return architecture, preprocessing, []
        kind = preprocessing.channels, preprocessing.dtype
        if other and (other.channels, other.dtype) == kind:
            preprocessing = replace(
                other,
                scale=preprocessing.scale,
                nodata=preprocessing.nodata,
                ground_resolution=preprocessing.ground_resolution,
            )
        if not self.is_whole:
            return architecture, preprocessing, []
        told = architecture.model
        if is_own("networks", told) and not is_own("networks", described.model):
            raise UserError(
                f"--model {told}: {self.source} contains its network, {described.model}; leave out --model, or --load"
            )
        described = trust(described, architecture.model, self.source, "--model")
        architecture = replace(
            described, num_classes=architecture.num_classes, channels=architecture.channels
        )
        return architecture, preprocessing, [f"network as in {self.source}"]

    def fit(self, architecture: Architecture, labels: Labels) -> tuple[State, list[str]]:
        """Return what the network takes, and lines for the user; see `fit_weights`."""
        fitted = fit_weights(
            self.model, architecture, labels, self.source, encoder_only=not self.is_whole
        )
        notes = [f"{self.source}: {note}" for note in self.model.notes]
        return fitted.state, [*notes, *fitted.describe(self.source)]


def read_weights(config: TrainConfig) -> GivenWeights | None:
    """Return the weights of the file of ``--load``, of a run its best, else of ``--encoder-weights``.

    ImageNet's come from an installed package of the extra `pretrained`. None without one: they are downloaded.
    """
    if config.run.load:
        source = find_model(config.run.load)
        return GivenWeights(read_model(source), source, is_whole=True)
    network = config.network
    weights = network.encoder_weights or ""
    if Path(weights).suffix:
        source = as_path(weights)
        return GivenWeights(read_model(source), source, is_whole=False)
    if weights != "imagenet" or network.encoder is None or is_own("networks", network.model):
        return None
    encoder = full_name(network.encoder)
    packaged = find_packaged(encoder)
    if packaged is None:
        return None
    return GivenWeights(read_packaged(packaged, encoder), packaged, is_whole=False)


@dataclass
class FittedWeights:
    """The weights that a network takes from a file, and an account of them."""

    state: State
    adapted: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # of the file, not taken
    new: list[str] = field(default_factory=list)  # of the network, not in the file

    def describe(self, source: Path) -> list[str]:
        """Return four lines for the user."""
        return [
            f"taken: {len(self.state)} tensors of {source}",
            f"adapted: {'; '.join(self.adapted) or 'nothing'}",
            f"left: {'; '.join(self.left) or 'nothing'}",
            f"new: {'; '.join(self.new) or 'nothing'}",
        ]


def fit_weights(
    loaded: SavedModel,
    architecture: Architecture,
    labels: Labels,
    source: Path,
    *,
    encoder_only: bool,
) -> FittedWeights:
    """Return the weights that a network takes from a file, adapted to its bands and classes.

    All of the encoder must fit. The rest must too, unless the file has no more of it than the head,
    or with `encoder_only`.

    Raises:
        UserError: see `check_weights` and `build_blank`.
    """
    network = build_blank(architecture, source)
    convolutions = [name for name, part in network.named_modules() if isinstance(part, nn.Conv2d)]
    wanted, head = network.state_dict(), _find_head(architecture, network, source)
    names = _match_names(loaded.state, wanted)
    for name in [*wanted]:  # files of early versions of torch have no counters
        if name not in names and name.endswith("num_batches_tracked"):
            del wanted[name]
    part = wanted
    beyond = [n for n in wanted if not in_encoder(n) and n not in head]
    if not beyond and loaded.labels is not None:  # a network of ours that is an encoder and a head
        beyond = [*head]
    if encoder_only or not any(name in names for name in beyond):
        part = {name: tensor for name, tensor in wanted.items() if in_encoder(name)}
    found = {name: names[name] for name in part if name in names}
    fitted = FittedWeights(_take(loaded.state, found))
    used = {*found.values()}
    fitted.left += _enumerate("", [name for name in loaded.state if name not in used])
    fitted.new += _enumerate("", [name for name in wanted if name not in found])
    first = f"{convolutions[0]}.weight" if convolutions else ""
    if first in wanted and wanted[first].shape[1] == architecture.channels:  # no rearranged pixels
        _fit_bands(fitted, first, wanted[first])
    _fit_classes(fitted, head, loaded.labels, labels)
    check_weights(part, fitted.state, source)
    return fitted


def _take(state: State, found: Mapping[str, str]) -> State:
    """Return the tensors whose names are the values of `found` by its keys; with their versions if no name differs."""
    taken = {name: state[theirs] for name, theirs in found.items()}
    return with_versions(taken, state) if [*found] == [*found.values()] else taken


def _find_head(architecture: Architecture, network: nn.Module, source: Path) -> dict[str, int]:
    """Return the tensors that have a row for each class, by name, and the dimension of these rows.

    They are those in which a network for one more class differs.
    """
    count = architecture.num_classes
    more = count + 1 if count < IGNORE_ID else count - 1
    other = build_blank(replace(architecture, num_classes=more), source).state_dict()
    head = {}
    for name, tensor in network.state_dict().items():
        if name in other and other[name].ndim == tensor.ndim:
            sizes = [*zip(tensor.shape, other[name].shape, strict=True)]
            for dimension, each in enumerate(sizes):
                if each == (count, more):
                    head[name] = dimension
    return head


def _match_names(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the names in `state` of the tensors in `wanted`.

    The file of an encoder has no prefix; timm's encoders have other dots than its whole networks,
    and so have torchvision's files of DenseNets.
    """
    known = {_without_dots(name): name for name in wanted}
    found: dict[str, str] = {}
    for prefix in ("", "encoder.", "encoder.model.", "model."):
        keys = {_without_dots(prefix + name): name for name in state}
        matches = {known[key]: name for key, name in keys.items() if key in known}
        found = max(found, matches, key=len)
    return found


def _without_dots(name: str) -> str:
    return re.sub(r"(norm|conv)\.(\d)", r"\1\2", name).replace(".", "_")


def _fit_bands(fitted: FittedWeights, name: str, like: Tensor) -> None:
    """Adapt the first convolution, `name`, if it differs in nothing but the channels of images."""
    kernels = fitted.state.get(name)
    if kernels is None or kernels.ndim != 4 or not kernels.is_floating_point():
        return
    have, want = kernels.shape[1], like.shape[1]
    if 0 < have != want and kernels[:, 0].shape == like[:, 0].shape:
        fitted.state[name] = adapt_bands(kernels, want)
        fitted.adapted.append(f"{name}, from {have} to {count_of(want, 'channel')}")


def adapt_bands(kernels: Tensor, channels: int) -> Tensor:
    """Return kernels (out, C, height, width) for images of other `channels`, as timm's adapt_input_conv.

    For one channel the kernels are summed: grey images give what they gave as colour images of
    three equal channels. For others they are repeated and cut off, and scaled by C / channels.
    """
    if channels == 1:
        return kernels.sum(dim=1, keepdim=True)
    have = kernels.shape[1]
    return kernels[:, torch.arange(channels) % have] * (have / channels)


def _fit_classes(
    fitted: FittedWeights, head: Mapping[str, int], old: Labels | None, new: Labels
) -> None:
    """Give the head, if it is taken, a row for each new class: the class's own, or the old rows' mean."""
    taken: State = {}  # with the classes first
    for name, dimension in head.items():
        tensor = fitted.state.get(name)
        if tensor is not None and tensor.is_floating_point() and tensor.ndim > dimension:
            taken[name] = tensor.movedim(dimension, 0)
    counts = {len(tensor) for tensor in taken.values()}
    if old is None and counts and max(counts) < IGNORE_ID:
        old = Labels(tuple(range(max(counts))))
    if old is None or counts != {old.num_classes}:
        return  # not taken, or not of these classes: `check_weights` says so
    rows = match_classes(old, new)
    if rows == [*range(old.num_classes)]:
        return
    for name, tensor in taken.items():
        mean = tensor.mean(dim=0)
        new_rows = [mean if k is None else tensor[k] for k in rows]
        fitted.state[name] = torch.stack(new_rows).movedim(0, head[name]).contiguous()
    left = [name for k, name in enumerate(old.class_names) if k not in rows]
    added = [name for k, name in zip(rows, new.class_names, strict=True) if k is None]
    layer = next(iter(taken)).rpartition(".")[0]
    fitted.adapted += _enumerate(f"{layer}, to classes ", new.class_names)
    fitted.left += _enumerate("classes ", left)
    fitted.new += _enumerate("from the mean of the old classes ", added)


def match_classes(old: Labels, new: Labels) -> list[int | None]:
    """Return for each new class the old one that is the same; None if there is none.

    Classes are the same by name if both sets have names, else by mask value; of two sets of two
    classes, the background and the foreground are. Only names are the same where one set's classes overlap.
    """
    if old.names and new.names:
        known = {name: k for k, name in enumerate(old.names)}
        return [known.get(name) for name in new.names]
    if old.may_overlap != new.may_overlap:
        return [None] * new.num_classes
    if old.num_classes == new.num_classes == 2:
        return [0, 1]
    known = {old.show(value): k for k, value in enumerate(old.values)}
    return [known.get(new.show(value)) for value in new.values]


def _enumerate(kind: str, names: list[str]) -> list[str]:
    """Return the first of the names after `kind`, as one text; none for no names."""
    if not names:
        return []
    return [kind + join_some([name[:60] for name in names], _SHOWN)]
