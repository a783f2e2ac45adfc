"""Networks that compute logits: in torch, or in the library that a file's suffix names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from unet_ddp.checkpoints.weights import (
    SavedModel,
    build_loaded,
    digest_weights,
    find_model,
    read_model,
)
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.defaults import usual_defaults
from unet_ddp.errors import Limit, UserError, shorten
from unet_ddp.files import as_path
from unet_ddp.heads import SOFTMAX, Head
from unet_ddp.network.architecture import Architecture, trust
from unet_ddp.network.folding import fold_batchnorm
from unet_ddp.network.precision import image_type
from unet_ddp.network.unet import SMALLEST_SIDE
from unet_ddp.plugins import find, is_built_in
from unet_ddp.plugins.own import path_of, renew
from unet_ddp.prediction.changed_code import ChangedCode, find_changes
from unet_ddp.prediction.ensembles import check_match
from unet_ddp.prediction.source import check_models

_BYTES_PER_PIXEL = 1600  # of a network that does not say it
_CAST = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)  # no subclasses, which may compute their weights

_OPTIONS = {  # of a predictor, with their types
    "tile": (Integral, "a whole number"),
    "overlap": (Real, "a number"),
    "tta": (str, "text"),
    "threshold": (Real, "a number"),
    "ground_resolution": (Real, "a number"),
}
_GROUND_RESOLUTION = Limit(above=0, at_most=1_000_000)
_FLIPS = [(False, axes) for axes in ([], [1], [0], [0, 1])]
KINDS = {
    "none": _FLIPS[:1],
    "mirror": _FLIPS[:2],
    "flips": _FLIPS,
    "d4": [*_FLIPS, *((True, axes) for _, axes in _FLIPS)],
}
"""Transforms by kind of test-time augmentation: transposed or not, then flipped along rows (0) and columns (1)."""


class TorchBackend:
    """A network in evaluation mode with its normalisation, on a device.

    With `fold`, batch norm is folded into the convolutions; without, logits are bit for bit those
    that training scored in `dtype`, float32 or bfloat16.
    """

    def __init__(
        self,
        network: nn.Module,
        preprocessing: Preprocessing,
        device: torch.device,
        *,
        fold: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        network.eval()
        self._images = image_type(network)
        types = {p.dtype for p in network.parameters() if p.is_floating_point()}
        if fold and types <= {torch.float32}:  # others are in the user's own networks alone
            network = fold_batchnorm(network, preprocessing.channels)
            for module in network.modules():  # or autocast would convert them in each forward pass
                if type(module) in _CAST:
                    module.to(dtype)
        self.network = network.to(device)
        self.dtype = dtype
        self.preprocessing = preprocessing
        self.input_device = device
        self.stride = int(getattr(network, "stride", SMALLEST_SIDE))
        """Total downsampling factor, a power of two."""
        self.bytes_per_pixel = int(getattr(network, "bytes_per_pixel", _BYTES_PER_PIXEL))
        """Memory at the network's widest point, roughly."""

    @torch.inference_mode()
    def __call__(self, pixels: Tensor) -> Tensor:
        """Return logits (N, num_classes, H, W) of pixels (N, H, W, C) as files contain them."""
        pixels = pixels.to(self.input_device, non_blocking=True)
        images = self.preprocessing(pixels, self._images)  # (N, C, H, W)
        is_half = self.dtype == torch.bfloat16  # on CPUs only
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            logits: Tensor = self.network(images)
        return logits.float()


class Backend(Protocol):
    """A network that computes logits; `TorchBackend` is one, and a file's suffix may name another."""

    input_device: torch.device
    """The device that it takes pixels from."""
    stride: int
    """Total downsampling factor, a power of two."""
    bytes_per_pixel: int
    """Memory at the network's widest point, roughly."""

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return logits (N, num_classes, H, W) of pixels (N, H, W, C) as files contain them."""


@dataclass(frozen=True)
class LoadedModel:
    """A trained network, and what its file says about it."""

    backend: Backend
    labels: Labels
    preprocessing: Preprocessing
    threshold: float | None
    notes: list[str]
    is_half: bool = False  # it computes in bfloat16
    digest: str = ""  # of its weights; empty if it is not known
    changes: list[str] = field(default_factory=list)
    """Lines about code of the user's own that has changed since the training; the notes have them as warnings."""


def open_model(source: str | Path, device: torch.device, **how: Any) -> LoadedModel:
    """Return the network in a file or at an address, as its suffix says; see `open_checkpoint`."""
    path = as_path(str(source))
    suffix = path.suffix.lower().removeprefix(".")
    name = suffix if is_built_in("backends", suffix) else "pt"
    return find("backends", name)(path, device, **how)


@usual_defaults()
def open_models(
    sources: Sequence[str | PathLike[str]],
    device: torch.device,
    *,
    network: object = None,
    **how: Any,
) -> list[LoadedModel]:
    """Return the networks in several files, folders of runs, or runs, which must match; a call begins with it.

    Raises:
        UserError: none is named, one is no path or can't be opened, or they do not match.
    """
    check_models(sources, how.get("scale"))
    renew()
    paths, models = [], []
    for source in sources:
        is_run = isinstance(source, PathLike) and not isinstance(source, Path)
        paths.append(find_model(os.fspath(source) if is_run else str(source)))
        told = network or getattr(source, "network", None)  # of a run
        models.append(open_model(paths[-1], device, network=told, **how))
    for path, model in zip(paths[1:], models[1:], strict=True):
        check_match(str(path), model, str(paths[0]), models[0])
    return models


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a predictor that Python gives; None counts as left out.

    Raises:
        UserError: there is no such option, or a value has another type, or is no ground resolution.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in _OPTIONS:
            raise UserError(
                f"{name}: a predictor has no such option; help(unet_ddp.Predictor.from_checkpoint) has them all"
            )
        kind, words = _OPTIONS[name]
        if isinstance(value, bool) or not isinstance(value, kind):
            raise UserError(f"{name}: {shorten(value)}; expected {words}")
    ground = given.get("ground_resolution")
    if ground is not None and ground not in _GROUND_RESOLUTION:
        raise UserError(f"ground_resolution: {ground:g}; must be {_GROUND_RESOLUTION}")
    return given


def open_checkpoint(
    path: Path,
    device: torch.device,
    *,
    scale: float | None = None,
    runtime: str | None = None,
    **how: Any,
) -> LoadedModel:
    """Return the network in a checkpoint of ours or of another U-Net program; see `build_model`."""
    if runtime is not None:
        raise UserError(
            f"--runtime {runtime}: is for exported networks, and torch runs {path}; leave the flag "
            "out, or export it"
        )
    return build_model(read_model(path, scale), path, device, **how)


def build_model(
    model: SavedModel,
    source: Path,
    device: torch.device,
    *,
    fold: bool = True,
    bfloat16: bool = False,
    network: object = None,
) -> LoadedModel:
    """Return the model that was read from `source`, ready to run; see `TorchBackend` for `fold`.

    With `bfloat16`, a CPU computes in that if the network's run did. `network` is the user's own or its path, see
    `trust`.

    Raises:
        UserError: its network or classes are not known, or its weights are another network's.
    """
    saved, labels, preprocessing = check_described(model, source)
    architecture = trust(saved, _path_of(network), source)
    with torch.no_grad():  # or what a network of the user's computes of its weights can't be copied
        built = build_loaded(architecture, model.state, source)
    config = model.run.get("config") or {}
    is_half = config.get("precision") == "bfloat16" and bfloat16 and device.type == "cpu"
    dtype = torch.bfloat16 if is_half else torch.float32
    backend = TorchBackend(built, preprocessing, device, fold=fold, dtype=dtype)
    renamed = {architecture.part: model.sources[saved.part]} if saved.part in model.sources else {}
    notes = [*model.notes]
    if notes and not model.run:  # of another program's file
        notes.append(f"images at scale {preprocessing.scale:g}: it contains none (--scale)")
    changes = [*find_changes(architecture.part, source, {**model.sources, **renamed})]
    return LoadedModel(
        backend,
        labels,
        preprocessing,
        model.threshold,
        [*notes, *(f"warning: {line}" for line in changes)],
        is_half,
        digest_weights(model.state),
        changes,
    )


def warn_of_changes(models: Iterable[LoadedModel]) -> None:
    """Warn Python's caller of code of the user's own that has changed since the training."""
    for line in (line for model in models for line in model.changes):
        warnings.warn(line, ChangedCode, stacklevel=3)


def _path_of(network: object) -> str | None:
    """Return the import path of a network of the user's own, which may be the object itself."""
    if network is None or isinstance(network, str):
        return network
    path = path_of(network)
    if path is None:
        name = getattr(network, "__name__", None) or shorten(network)
        raise UserError(
            f"network: {name} is in no module; write it into a file, and use module:Name"
        )
    return path


def check_described(model: SavedModel, source: Path) -> tuple[Architecture, Labels, Preprocessing]:
    """Return what a saved model's file says of its network, or raise a UserError if it does not."""
    if model.architecture is None or model.labels is None or model.preprocessing is None:
        raise UserError(
            f"{source}: neither a checkpoint of ours nor a classic U-Net, so its classes are not "
            "known; start training from it with --load and the flags of its network"
        )
    return model.architecture, model.labels, model.preprocessing


@torch.inference_mode()
def mean_logits(
    networks: Sequence[Backend], images: Tensor, kind: str, head: Head = SOFTMAX
) -> Tensor:
    """Return logits (N, C, H, W) of the mean probabilities over networks and transforms.

    The images (N, H, W, C) are copied to the device once, and transformed there.
    """
    pixels = images.to(networks[0].input_device, non_blocking=True)
    if kind == "none" and len(networks) == 1:
        return networks[0](pixels)
    total: Tensor | None = None
    for is_transposed, axes in KINDS[kind]:
        seen = pixels.transpose(1, 2) if is_transposed else pixels
        seen = seen.flip([1 + axis for axis in axes]).contiguous()
        for network in networks:
            logits = network(seen).flip([2 + axis for axis in axes])
            if is_transposed:
                logits = logits.transpose(2, 3)
            found = head.to_logarithms(logits.float())
            total = found if total is None else torch.logaddexp(total, found)
    assert total is not None
    return head.to_logits(total).contiguous()
