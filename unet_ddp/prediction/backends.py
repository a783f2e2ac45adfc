"""Networks that compute logits: in torch, or exported to ONNX and run by onnxruntime."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from unet_ddp.checkpoints.weights import SavedModel, build_loaded, read_model, with_scale
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Colour
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.device import is_out_of_memory
from unet_ddp.errors import Limit, UserError, check_installed, from_plain, shorten
from unet_ddp.files import as_path
from unet_ddp.network.architecture import Architecture, trust
from unet_ddp.network.folding import fold_batchnorm
from unet_ddp.network.precision import cast_weights
from unet_ddp.network.unet import SMALLEST_SIDE

_BYTES_PER_PIXEL = 1600  # of a network that does not say it
METADATA = "unet_ddp"  # key of our metadata in an exported file


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
        if fold:
            network = fold_batchnorm(network, preprocessing.channels)
            cast_weights(network, dtype)
        self.network = network.to(device)
        self.dtype = dtype
        self.preprocessing = preprocessing
        self.device = self.input_device = device
        self.stride = int(getattr(network, "stride", SMALLEST_SIDE))
        """Total downsampling factor, a power of two."""
        self.bytes_per_pixel = int(getattr(network, "bytes_per_pixel", _BYTES_PER_PIXEL))
        """Memory at the network's widest point, roughly."""

    @torch.inference_mode()
    def __call__(self, pixels: Tensor) -> Tensor:
        """Return logits (N, num_classes, H, W) of pixels (N, H, W, C) as files contain them."""
        images = self.preprocessing(pixels.to(self.device, non_blocking=True))  # (N, C, H, W)
        is_half = self.dtype == torch.bfloat16  # on CPUs only
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            logits: Tensor = self.network(images)
        return logits.float()


@dataclass(frozen=True)
class OnnxFacts:
    """The description of a network in its exported file."""

    labels: Labels
    preprocessing: Preprocessing
    threshold: Annotated[float, Limit(above=0, below=1)] | None
    stride: Annotated[int, tuple(2**k for k in range(11))]
    bytes_per_pixel: Annotated[int, Limit(1, 2**20)]
    classes: tuple[str, ...] = ()
    colours: tuple[Colour, ...] = ()

    def check_ends(self, inputs: Any, outputs: Any) -> None:
        """Refuse a file whose input or output is not of these pixels and classes."""
        pixels, classes = self.preprocessing, self.labels.num_classes
        kind = f"tensor({pixels.dtype.replace('float32', 'float')})"
        for ends, name, place, size, expected in (
            (inputs, "pixels", 3, pixels.channels, kind),
            (outputs, "logits", 1, classes, "tensor(float)"),
        ):
            found = [(end.type, list(end.shape)) for end in ends if end.name == name]
            if not any(t == expected and len(s) == 4 and s[place] == size for t, s in found):
                given = f"{found[0][0]} {shorten(found[0][1])}" if found else "missing"
                raise UserError(
                    f"{name}: {given}; expected {expected} of 4 dimensions, {size} at place {place + 1}"
                )


class OnnxBackend:
    """A network that `python -m unet_ddp export` wrote, run by onnxruntime."""

    input_device = torch.device("cpu")  # which it copies from itself

    def __init__(self, path: Path, device: torch.device) -> None:
        onnxruntime = import_extra("onnxruntime", path)
        has_gpu = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
        providers = ["CUDAExecutionProvider"] if has_gpu and device.type == "cuda" else []
        providers.append("CPUExecutionProvider")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what it writes to stderr, it raises too
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            self.session: Any = onnxruntime.InferenceSession(
                os.fspath(path), options, providers=providers
            )
            metadata = self.session.get_modelmeta().custom_metadata_map.get(METADATA)
        except Exception as error:  # onnxruntime raises classes of its own, some of them private
            reason = " ".join(str(error).split())[:160]
            raise UserError(f"{path}: no ONNX file, or a corrupt one ({reason})") from None
        if metadata is None:
            raise UserError(
                f"{path}: not exported by unet_ddp: its classes and scale are unknown; write it "
                "with python -m unet_ddp export"
            )
        try:
            self.facts = from_plain(OnnxFacts, json.loads(metadata))
            self.facts.check_ends(self.session.get_inputs(), self.session.get_outputs())
        except (ValueError, RecursionError) as error:  # UserError and what json raises
            reason = str(error) if isinstance(error, UserError) else "its metadata is not JSON"
            raise UserError(f"{path}: {reason}; export it again") from None
        self.path = path
        self.device = device
        self.stride = self.facts.stride
        self.bytes_per_pixel = self.facts.bytes_per_pixel

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return logits, see `TorchBackend`."""
        count, height, width, _ = pixels.shape
        reason = ""
        try:
            feed = {"pixels": np.ascontiguousarray(pixels.cpu().numpy())}
            (logits,) = self.session.run(["logits"], feed)
        except Exception as error:  # see above
            if is_out_of_memory(error):
                raise torch.OutOfMemoryError(str(error)) from None
            reason = " ".join(str(error).split())[:160]
        else:
            if logits.shape == (count, self.facts.labels.num_classes, height, width):
                return torch.from_numpy(logits).to(self.device)
            reason = f"its logits are {logits.shape}"
        raise UserError(f"{self.path}: can't be run on {width}x{height} pixels ({reason})")


@dataclass(frozen=True)
class LoadedModel:
    """A trained network, and what its file says about it."""

    backend: TorchBackend | OnnxBackend
    labels: Labels
    preprocessing: Preprocessing
    threshold: float | None
    notes: list[str]

    def __post_init__(self) -> None:
        """Refuse a network whose predictions can't be decoded here."""
        self.labels.check_libraries()


def open_model(
    source: str | Path,
    device: torch.device,
    *,
    scale: float | None = None,
    fold: bool = True,
    amp: bool = False,
    network: str | None = None,
) -> LoadedModel:
    """Return the network in a checkpoint, of ours or of another U-Net program, or in an ONNX file.

    `source` is a file or the address of an object; the rest is as in `build_model`.
    """
    path = as_path(str(source))
    if path.suffix.lower() == ".onnx":
        return _open_onnx(path, device, scale)
    saved = with_scale(read_model(path), scale)
    return build_model(saved, path, device, fold=fold, amp=amp, network=network)


def build_model(
    model: SavedModel,
    source: Path,
    device: torch.device,
    *,
    fold: bool = True,
    amp: bool = False,
    network: str | None = None,
) -> LoadedModel:
    """Return the model that was read from `source`, ready to run; see `TorchBackend` for `fold`.

    With `amp`, a CPU computes in bfloat16 if the network's run did. `network` is the path of the user's
    own, see `trust`.

    Raises:
        UserError: its network or classes are not known, or its weights are another network's.
    """
    architecture, labels, preprocessing = check_described(model, source)
    built = build_loaded(trust(architecture, network, source), model.state, source)
    is_half = amp and model.is_bfloat16 and device.type == "cpu"
    dtype = torch.bfloat16 if is_half else torch.float32
    notes = [*model.notes, *["in bfloat16, as it was trained (--no-amp: float32)"] * is_half]
    backend = TorchBackend(built, preprocessing, device, fold=fold, dtype=dtype)
    return LoadedModel(backend, labels, preprocessing, model.threshold, notes)


def check_described(model: SavedModel, source: Path) -> tuple[Architecture, Labels, Preprocessing]:
    """Return what a saved model's file says of its network, or raise a UserError if it does not."""
    if model.architecture is None or model.labels is None or model.preprocessing is None:
        raise UserError(
            f"{source}: neither a checkpoint of ours nor a classic U-Net, so its classes are not "
            "known; start training from it with --load and the flags of its network"
        )
    return model.architecture, model.labels, model.preprocessing


def _open_onnx(path: Path, device: torch.device, scale: float | None) -> LoadedModel:
    if not path.is_file():
        raise UserError(f"{path}: not found")
    backend = OnnxBackend(path, device)
    facts, preprocessing = backend.facts, backend.facts.preprocessing
    if scale is not None:
        raise UserError(
            f"--scale {scale:g}: this file has its scale, {preprocessing.scale:g}; leave the flag out"
        )
    return LoadedModel(backend, facts.labels, preprocessing, facts.threshold, [])


def import_extra(name: str, path: Path) -> Any:
    """Return a module of the extra `onnx`, which `path` needs; a UserError if not installed."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime reports to its maker
    check_installed(name, "onnx", path)
    return import_module(name)


def check_match(path: str, model: LoadedModel, first_path: str, first: LoadedModel) -> None:
    """Raise UserError for networks whose probabilities can't be averaged."""
    both = (model.labels, first.labels)
    have_names = all(labels.names for labels in both)  # one may have been trained without any
    for what, own, other in (
        ("kind of masks", *(labels.kind for labels in both)),
        ("classes", *(tuple(map(labels.show, labels.values)) for labels in both)),
        ("names", *(labels.names if have_names else () for labels in both)),
        ("channels", model.preprocessing.channels, first.preprocessing.channels),
        ("type of pixels", model.preprocessing.dtype, first.preprocessing.dtype),
        ("scale", model.preprocessing.scale, first.preprocessing.scale),
        ("resolution", *(one.preprocessing.ground_resolution for one in (model, first))),
    ):
        if own != other:
            raise UserError(
                f"{path}: its {what} ({own}) differs from that of {first_path} ({other}); an "
                "ensemble needs networks of one data set at one scale"
            )


def mean_threshold(models: Sequence[LoadedModel]) -> float | None:
    """Return the threshold of an ensemble, None for the most probable class: without one, 0.5 counts."""
    found = [model.threshold for model in models]
    return fmean(p or 0.5 for p in found) if any(found) else None
