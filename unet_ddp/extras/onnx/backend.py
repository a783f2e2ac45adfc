"""Networks that are exported to ONNX, run by onnxruntime."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Colour
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.device import is_out_of_memory
from unet_ddp.errors import Limit, UserError, check_installed, from_plain, shorten
from unet_ddp.prediction.backends import LoadedModel

METADATA = "unet_ddp"  # key of our metadata in an exported file


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
        """Return logits, see `Backend`."""
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


def open_onnx(
    path: Path, device: torch.device, *, scale: float | None = None, **_: Any
) -> LoadedModel:
    """Return the network in an ONNX file of ours; it runs as it was exported."""
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
