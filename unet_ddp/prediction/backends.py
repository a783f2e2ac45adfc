"""What computes logits: a network in torch, or an exported one in onnxruntime."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError
from unet_ddp.network.architecture import Architecture, build_network
from unet_ddp.network.unet import SMALLEST_SIDE
from unet_ddp.runs.weights import SavedModel, load_weights, read_model, with_scale

METADATA = "unet_ddp"  # the key of ours in an exported file
INSTALL = "pip install 'unet-ddp[onnx]'"
_VALUES_PER_PIXEL = 6  # that the classic network holds at its widest, in widths
_SMP_VALUES = 400


class Backend(Protocol):
    """A network that can be run."""

    stride: int
    """How often it halves, as a power of two."""
    bytes_per_pixel: int
    """Of memory that it takes at its widest, about."""

    def __call__(self, pixels: Tensor) -> Tensor:
        """Pixels (N, H, W, C), as files hold them, to logits (N, num_classes, H, W) float32."""
        ...


@dataclass(frozen=True)
class LoadedModel:
    """A trained network with all that its file says."""

    backend: Backend
    labels: Labels
    preprocessing: Preprocessing
    threshold: float | None
    notes: list[str]


class TorchBackend:
    """A network with its normalisation, on a device.

    Args:
        fold: fold batch norm into the convolutions; without it the logits are bit for bit those
            that training scored.
    """

    def __init__(
        self,
        network: nn.Module,
        preprocessing: Preprocessing,
        device: torch.device,
        *,
        fold: bool = True,
    ) -> None:
        network.eval()
        self.network = (fold_batchnorm(network) if fold else network).to(device)
        self.preprocessing = preprocessing
        self.device = device
        self.stride = stride_of(network)
        self.bytes_per_pixel = bytes_per_pixel(network)

    @torch.inference_mode()
    def __call__(self, pixels: Tensor) -> Tensor:
        batch = self.preprocessing(pixels.to(self.device, non_blocking=True))
        logits: Tensor = self.network(batch)
        return logits.float()


def stride_of(network: nn.Module) -> int:
    """How often it halves, as a power of two."""
    return int(getattr(network, "stride", SMALLEST_SIDE))


def bytes_per_pixel(network: nn.Module) -> int:
    """Of memory that it takes at its widest, about."""
    first = getattr(network, "inc", None)
    values = _SMP_VALUES if first is None else _VALUES_PER_PIXEL * first.double_conv[0].out_channels
    return 4 * int(values)


def fold_batchnorm(network: nn.Module) -> nn.Module:
    """A copy in which a convolution followed by batch norm is one convolution, the same function."""
    network = copy.deepcopy(network)
    for block in list(network.modules()):
        if not isinstance(block, nn.Sequential):
            continue
        for place, (first, second) in enumerate(pairwise(list(block))):
            if type(first) is nn.Conv2d and type(second) is nn.BatchNorm2d:
                block[place] = nn.utils.fuse_conv_bn_eval(first, second)
                block[place + 1] = nn.Identity()
    return network.to(memory_format=torch.channels_last)


class OnnxBackend:
    """A network that `python -m unet_ddp export` wrote, in onnxruntime."""

    def __init__(self, path: Path, device: torch.device) -> None:
        onnxruntime = import_extra("onnxruntime", str(path))
        wanted = ["CUDAExecutionProvider"] if device.type == "cuda" else []
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            self.session: Any = onnxruntime.InferenceSession(
                str(path), options, providers=[*wanted, "CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's own kinds, some of them private
            reason = " ".join(str(error).split())[:160]
            raise UserError(f"{path}: no ONNX file, or a damaged one ({reason})") from None
        about = self.session.get_modelmeta().custom_metadata_map.get(METADATA)
        if about is None:
            raise UserError(
                f"{path}: not exported by unet_ddp: it does not say its classes and scale; make it "
                "with python -m unet_ddp export"
            )
        self.device = device
        self.about: Mapping[str, Any] = json.loads(about)
        self.stride = int(self.about["stride"])
        self.bytes_per_pixel = int(self.about["bytes_per_pixel"])

    def __call__(self, pixels: Tensor) -> Tensor:
        (logits,) = self.session.run(["logits"], {"pixels": np.ascontiguousarray(pixels.numpy())})
        return torch.from_numpy(logits).to(self.device)


def open_model(
    path: Path, device: torch.device, *, scale: float | None = None, fold: bool = True
) -> LoadedModel:
    """Return the network in a checkpoint, of ours or of another U-Net program, or in an ONNX file.

    Raises:
        UserError: it can't be loaded.
    """
    if path.suffix.lower() == ".onnx":
        return _open_onnx(path, device, scale)
    return build_model(with_scale(read_model(path), scale), path, device, fold=fold)


def build_model(
    model: SavedModel, source: Path, device: torch.device, *, fold: bool = True
) -> LoadedModel:
    """Return a saved model, ready to run on `device`.

    Args:
        model: as `read_model` gave it.
        source: its file, for messages.
        fold: see `TorchBackend`.

    Raises:
        UserError: its network or classes are not known, or its weights are another network's.
    """
    architecture, labels, preprocessing = check_described(model, source)
    network = build_network(architecture)
    load_weights(network, model.state, source)
    backend = TorchBackend(network, preprocessing, device, fold=fold)
    return LoadedModel(backend, labels, preprocessing, model.threshold, model.notes)


def check_described(model: SavedModel, source: Path) -> tuple[Architecture, Labels, Preprocessing]:
    """Return architecture, labels and preprocessing of a saved model.

    Raises:
        UserError: its file does not say them.
    """
    if model.architecture is None or model.labels is None or model.preprocessing is None:
        raise UserError(
            f"{source}: neither a checkpoint of ours nor a classic U-Net, so its classes are not "
            "known; start training from it with --load and the flags of its network"
        )
    return model.architecture, model.labels, model.preprocessing


def _open_onnx(path: Path, device: torch.device, scale: float | None) -> LoadedModel:
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    backend = OnnxBackend(path, device)
    preprocessing = Preprocessing.from_dict(backend.about["preprocessing"])
    if scale is not None:
        raise UserError(
            f"--scale {scale}: this file knows its scale, {preprocessing.scale:g}; leave the flag out"
        )
    labels = Labels.from_dict(backend.about["labels"])
    return LoadedModel(backend, labels, preprocessing, backend.about["threshold"], [])


def import_extra(name: str, why: str) -> Any:
    """A package of the extra `onnx`.

    Raises:
        UserError: it is not installed.
    """
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise UserError(f"{why}: needs {name}, which is not installed; {INSTALL}") from None
