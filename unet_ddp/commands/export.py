"""A checkpoint as a file for other programs: ONNX, or torch's own exported program."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from torch import Tensor, nn

from unet_ddp.cli import parse
from unet_ddp.config import flag
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import RunError, UserError
from unet_ddp.prediction.backends import (
    METADATA,
    LoadedModel,
    OnnxBackend,
    TorchBackend,
    build_model,
    check_described,
    import_extra,
)
from unet_ddp.prediction.outputs.files import replacing
from unet_ddp.runs.weights import read_model, with_scale

LARGEST_DIFFERENCE = 1e-4
"""Of probabilities, between a file and the network that it was made from."""
_SIZES = (
    (1, 64, 96),
    (2, 97, 131),
    (1, 33, 50),
    (1, 9, 21),
    (1, 160, 240),
)  # images, height and width
_TRACED = (2, 75, 107)  # a size at which nothing divides evenly


@dataclass(frozen=True)
class ExportConfig:
    """Write a checkpoint as a file for other programs.

    python -m unet_ddp export best.pt model.onnx
    """

    checkpoint: Annotated[str, tyro.conf.Positional, flag("CHECKPOINT")]
    """The checkpoint."""
    output: Annotated[str, tyro.conf.Positional, flag("FILE")]
    """The file to write, .onnx or .pt2."""
    format: Literal["onnx", "torch"] = "onnx"
    """onnx: for onnxruntime, other ONNX programs and predict.py; torch: an exported program of torch."""
    scale: Annotated[float | None, flag("FACTOR", "-s")] = None
    """Scale of the images for a checkpoint of another program, which does not contain it (default: 0.5)."""
    overwrite: bool = False
    """Replace an existing file."""


def main(argv: Sequence[str]) -> int:
    """Export a checkpoint, print what was written, and return the exit status."""
    for line in export(parse(ExportConfig, argv, prog="python -m unet_ddp export")):
        print(line)
    return 0


class Exported(nn.Module):
    """From pixels as files hold them to logits and probabilities."""

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
        """(N, H, W, C) to logits and probabilities, both (N, num_classes, H, W)."""
        images = (pixels.permute(0, 3, 1, 2).float() - self.mean) * self.factor
        logits: Tensor = self.network(images)
        return logits, logits.softmax(1)


def export(config: ExportConfig) -> list[str]:
    """Write the file, and compare it with the network at several sizes; what was found, in lines.

    Raises:
        UserError: a package is missing, or something is there already.
        RunError: the file gives other probabilities than the network; it is not kept.
    """
    path = Path(config.output)
    ending = ".onnx" if config.format == "onnx" else ".pt2"
    if path.suffix.lower() != ending:
        raise UserError(f"{path}: a file of --format {config.format} ends in {ending}")
    if path.exists() and not config.overwrite:
        raise UserError(f"{path}: is there already; give --overwrite, or another name")
    if config.format == "onnx":
        for name in ("onnx", "onnxscript", "onnxruntime"):
            import_extra(name, f"{path}")
    source = Path(config.checkpoint)
    saved = with_scale(read_model(source), config.scale)
    architecture = check_described(saved, source)[0]
    member = build_model(saved, source, torch.device("cpu"), fold=False)
    assert isinstance(member.backend, TorchBackend)
    network = member.backend.network.to(memory_format=torch.contiguous_format)
    module = Exported(network, member.preprocessing)
    write = _write_onnx if config.format == "onnx" else _write_program
    with replacing(path) as half:
        write(module, member, half)
        run = _open_onnx(half) if config.format == "onnx" else _open_program(half)
        difference = largest_difference(module, run, member.preprocessing)
        if difference > LARGEST_DIFFERENCE:
            raise RunError(
                f"{path}: not kept: its probabilities differ by up to {difference:.1e} from those of "
                f"{config.checkpoint}"
            )
    sizes = ", ".join(f"{width}x{height}" for _, height, width in _SIZES)
    return [
        f"{path}: {architecture}",
        f"  pixels (N, H, W, {architecture.channels}) of {member.preprocessing.dtype}, at scale "
        f"{member.preprocessing.scale:g}, to logits and probabilities "
        f"(N, {architecture.num_classes}, H, W)",
        f"  probabilities differ by at most {difference:.1e} from the checkpoint's ({sizes} pixels)",
    ]


def _program(module: Exported, preprocessing: Preprocessing) -> Any:
    """The network traced for any number of images of any size."""
    count, height, width = _TRACED
    pixels = _pixels(preprocessing, count, height, width)
    auto = torch.export.Dim.DYNAMIC
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of what torch will do otherwise some day
        return torch.export.export(module, (pixels,), dynamic_shapes=({0: auto, 1: auto, 2: auto},))


def _write_program(module: Exported, member: LoadedModel, path: Path) -> None:
    program = _program(module, member.preprocessing)
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={f"{METADATA}.json": _about(member)})


def _write_onnx(module: Exported, member: LoadedModel, path: Path) -> None:
    onnx = import_extra("onnx", str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _program(module, member.preprocessing),
            dynamo=True,
            input_names=["pixels"],
            output_names=["logits", "probabilities"],
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    about = proto.metadata_props.add()
    about.key, about.value = METADATA, _about(member)
    onnx.checker.check_model(proto)
    path.write_bytes(proto.SerializeToString())


def _about(member: LoadedModel) -> str:
    """All that prediction needs to know besides the network."""
    return json.dumps(
        {
            "labels": member.labels.to_dict(),
            "classes": member.labels.class_names,
            "colours": [list(colour) for colour in member.labels.colours],
            "preprocessing": member.preprocessing.to_dict(),
            "threshold": member.threshold,
            "stride": member.backend.stride,
            "bytes_per_pixel": member.backend.bytes_per_pixel,
        }
    )


def largest_difference(
    module: Exported, run: Callable[[Tensor], Tensor], preprocessing: Preprocessing
) -> float:
    """Between the probabilities of the network and of its file, over images of several sizes."""
    largest = 0.0
    for count, height, width in _SIZES:
        pixels = _pixels(preprocessing, count, height, width)
        with torch.inference_mode():
            expected = module(pixels)[1]
        largest = max(largest, float((run(pixels) - expected).abs().max()))
    return largest


def _open_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    backend = OnnxBackend(path, torch.device("cpu"))
    return lambda pixels: backend(pixels).softmax(1)


def _open_program(path: Path) -> Callable[[Tensor], Tensor]:
    with path.open("rb") as file:
        # Its guards hold the sizes it was traced with apart from others; what it computes is the same.
        module = torch.export.load(file).module(check_guards=False)
    return lambda pixels: module(pixels)[1].detach()


def _pixels(preprocessing: Preprocessing, count: int, height: int, width: int) -> Tensor:
    """Noise of the images' kind."""
    shape = (count, height, width, preprocessing.channels)
    noise = np.random.default_rng(0).uniform(preprocessing.low, preprocessing.high, shape)
    return torch.from_numpy(noise.astype(preprocessing.dtype))
