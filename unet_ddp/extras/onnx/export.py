"""A checkpoint as an ONNX file for other programs."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from torch import Tensor, nn

from unet_ddp.checkpoints.weights import find_model, read_model
from unet_ddp.cli import parse
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import RunError, UserError, print_lines
from unet_ddp.extras.onnx.backend import METADATA, OnnxBackend, import_extra
from unet_ddp.files import as_local_path, check_no_input, replacing, write_errors
from unet_ddp.prediction.backends import LoadedModel, TorchBackend, build_model
from unet_ddp.settings import flag

LARGEST_DIFFERENCE = 1e-4  # of probabilities, between an exported file and its network
_ROUNDINGS = 4  # as many times its own error in float32 may a file differ from a network
_SIZES = ((1, 64, 96), (2, 97, 131), (1, 33, 50), (1, 9, 21), (1, 160, 240))  # (N, H, W)
_TRACED = (2, 75, 107)  # sides that no stride divides
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ExportConfig:
    """Write a checkpoint as an ONNX file for other programs.

    python -m unet_ddp export best.pt model.onnx
    """

    checkpoint: Annotated[str, tyro.conf.Positional, flag("CHECKPOINT")]
    """The checkpoint or its run's folder, or an address (s3://…)."""
    output: Annotated[str, tyro.conf.Positional, flag("FILE")]
    """The file to write, .onnx."""
    network: Annotated[str | None, flag("MODULE:FUNCTION")] = None
    """The network of your own that the checkpoint was trained with: a checkpoint starts no code."""
    scale: Annotated[float | None, flag("FACTOR", "-s")] = None
    """Scale of the images for a checkpoint of another program, which does not contain it (default: 0.5)."""
    overwrite: bool = False
    """Replace an existing file."""


def main(argv: Sequence[str]) -> int:
    """Export a checkpoint, print what was written, and return the exit status."""
    print_lines(*export(parse(ExportConfig, argv, prog="python -m unet_ddp export")))
    return 0


class Exported(nn.Module):
    """A network with its normalisation and softmax."""

    mean: Tensor
    factor: Tensor

    def __init__(self, network: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.network = network
        mean = torch.tensor(preprocessing.fill)
        std = torch.tensor(preprocessing.std) * ((preprocessing.high - preprocessing.low) or 1.0)
        self.register_buffer("mean", mean.view(1, -1, 1, 1))
        self.register_buffer("factor", (1 / std).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and probabilities (N, num_classes, H, W) of pixels (N, H, W, C)."""
        images = pixels.permute(0, 3, 1, 2).to(self.mean.dtype)  # (N, C, H, W)
        images = (images - self.mean) * self.factor
        logits: Tensor = self.network(images)
        return logits, logits.softmax(1)


def export(config: ExportConfig) -> list[str]:
    """Write the file, compare it with the network at several sizes, and return lines to print."""
    path, source = as_local_path(config.output, "FILE"), find_model(config.checkpoint)
    if path.suffix.lower() != ".onnx":
        raise UserError(f"{path}: the name must end in .onnx")
    if path.exists() and not config.overwrite:
        raise UserError(f"{path}: already exists; use --overwrite, or another name")
    check_no_input([("export", path)], [("checkpoint", source)])
    for name in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(name, path)
    saved = read_model(source, config.scale)
    model = build_model(saved, source, _CPU, fold=False, network=config.network)
    assert saved.architecture is not None and isinstance(model.backend, TorchBackend)
    network = model.backend.network.to(memory_format=torch.contiguous_format)
    pixels = model.preprocessing
    module = Exported(network, pixels)
    with write_errors(path), replacing(path) as temporary:
        write_onnx(module, model, temporary)
        backend = OnnxBackend(temporary, _CPU)
        backend.path = path  # for messages
        try:
            difference = largest_difference(module, backend, pixels)
        except UserError as error:
            raise UserError(
                f"{error}; as an ONNX file {saved.architecture.model} has no form for images of any "
                f"size: predict with {source}, or train another --model"
            ) from None
        rounding = largest_rounding(module, pixels) if difference > LARGEST_DIFFERENCE else 0.0
        if difference > max(LARGEST_DIFFERENCE, _ROUNDINGS * rounding):
            raise RunError(
                f"{path}: not kept: its probabilities differ by up to {difference:.1e} from those of "
                f"{source}"
            )
    sizes = ", ".join(f"{width}x{height}" for _, height, width in _SIZES)
    return [
        f"{path}: {saved.architecture}",
        f"  pixels (N, H, W, {pixels.channels}) of {pixels.dtype}, at scale {pixels.scale:g}, to "
        f"logits and probabilities (N, {model.labels.num_classes}, H, W)",
        f"  probabilities differ by at most {difference:.1e} from the checkpoint's ({sizes} pixels)",
    ]


def largest_difference(
    module: Exported, backend: Callable[[Tensor], Tensor], preprocessing: Preprocessing
) -> float:
    """Return by how much the probabilities of a backend's logits differ from the network's, over all sizes."""
    largest = 0.0
    for size in _SIZES:
        pixels = _noise(preprocessing, size)
        with torch.inference_mode():
            expected, found = module(pixels)[1], backend(pixels).softmax(1)
        largest = max(largest, float((found - expected).abs().max()))
    return largest


def largest_rounding(module: Exported, preprocessing: Preprocessing) -> float:
    """Return by how much the network's own probabilities differ in float32 from those in float64.

    It is large after few steps of training: a channel that hardly varied is then divided by almost 0.
    """
    exact = copy.deepcopy(module).double()
    return largest_difference(exact, lambda pixels: module(pixels)[0], preprocessing)


def _noise(preprocessing: Preprocessing, size: tuple[int, int, int]) -> Tensor:
    """Return random pixels (N, H, W, C) of the images' type and range."""
    shape = (*size, preprocessing.channels)
    noise = np.random.default_rng(0).uniform(preprocessing.low, preprocessing.high, shape)
    return torch.from_numpy(noise.astype(preprocessing.dtype))


def write_onnx(module: Exported, model: LoadedModel, path: Path) -> None:
    """Trace the network for any number of images of any size; write it with all about it."""
    onnx = import_extra("onnx", path)
    auto = torch.export.Dim.DYNAMIC
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of what torch will deprecate
        traced = torch.export.export(
            module,
            (_noise(model.preprocessing, _TRACED),),
            dynamic_shapes=({0: auto, 1: auto, 2: auto},),
        )
        program = torch.onnx.export(
            traced,
            dynamo=True,
            input_names=["pixels"],
            output_names=["logits", "probabilities"],
            verbose=False,
        )
    assert program is not None
    facts = {
        "labels": model.labels.to_dict(),
        "classes": model.labels.class_names,
        "colours": model.labels.colours,
        "preprocessing": model.preprocessing.to_dict(),
        "threshold": model.threshold,
        "stride": model.backend.stride,
        "bytes_per_pixel": model.backend.bytes_per_pixel,
    }
    proto = program.model_proto
    proto.metadata_props.add(key=METADATA, value=json.dumps(facts))
    onnx.checker.check_model(proto)
    path.write_bytes(proto.SerializeToString())
