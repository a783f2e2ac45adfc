"""Networks that are exported to ONNX, run by onnxruntime or OpenVINO."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Colour
from unet_ddp.data.pairs import Stamp, find_stamp
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.device import is_out_of_memory
from unet_ddp.errors import Limit, UserError, from_plain, shorten
from unet_ddp.extras.onnx.runtimes import (
    RUNTIMES,
    list_installed,
    open_run,
    open_session,
    shorten_error,
)
from unet_ddp.files import as_path, is_address
from unet_ddp.files.contents import LaterFormatError, check_format
from unet_ddp.prediction.backends import LoadedModel
from unet_ddp.storage import storage_of

METADATA = "unet_ddp"  # key of our metadata in an exported file
FORMAT = 1  # of this metadata


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
    runtimes: tuple[Annotated[str, RUNTIMES], ...] = RUNTIMES[:1]
    """The ones that it was scored in, the fastest first."""
    form: str = ""
    """The flag of `export` that added steps to the network."""
    format: Annotated[int, Limit(FORMAT, FORMAT)] = FORMAT

    def check_ends(self, inputs: Any, outputs: Any) -> None:
        """Refuse a file whose input or output is not of these pixels and classes."""
        if self.form:
            raise UserError(f"its {self.form} form is for other programs, and has no logits")
        pixels = self.preprocessing
        dtype = pixels.dtype.replace("float32", "float")
        _check_end(inputs, "pixels", f"tensor({dtype})", 3, pixels.channels)
        _check_end(outputs, "logits", "tensor(float)", 1, self.labels.num_classes)


def _check_end(ends: Any, name: str, dtype: str, axis: int, size: int) -> None:
    """Refuse an input or output of a file that has not this type, or not this size of one of 4 axes."""
    found = "missing"
    for end in ends:
        if end.name == name:
            shape = list(end.shape)
            if end.type == dtype and len(shape) == 4 and shape[axis] == size:
                return
            found = f"{end.type} {shorten(shape)}"
    raise UserError(
        f"{name}: {found}; expected {dtype} of 4 dimensions, {size} at place {axis + 1}"
    )


class OnnxBackend:
    """A network that `python -m unet_ddp export` wrote, run by onnxruntime or OpenVINO."""

    input_device = torch.device("cpu")  # which it copies from itself

    def __init__(self, path: Path, device: torch.device, runtime: str | None = None) -> None:
        self.session: Any = open_session(path, device)
        metadata = self.session.get_modelmeta().custom_metadata_map.get(METADATA)
        if metadata is None:
            raise UserError(
                f"{path}: not exported by unet_ddp: its classes and scale are unknown; write it "
                "with python -m unet_ddp export"
            )
        try:
            plain = json.loads(metadata)
            check_format(path, plain, FORMAT)
            self.facts = from_plain(OnnxFacts, plain)
            self.facts.check_ends(self.session.get_inputs(), self.session.get_outputs())
        except LaterFormatError:
            raise
        except (ValueError, RecursionError) as error:  # UserError and what json raises
            reason = str(error) if isinstance(error, UserError) else "its metadata is not JSON"
            raise UserError(f"{path}: {reason}; export it again") from None
        self.runtime = runtime or self._choose_runtime(device)
        self.run = open_run(self.session, path, self.runtime)
        self.path, self.stamp = path, _stamp(path)
        self.device = device
        self.stride = self.facts.stride
        self.bytes_per_pixel = self.facts.bytes_per_pixel

    def __reduce__(self) -> tuple[Any, ...]:  # another process opens the file itself
        return _open_again, (str(self.path.absolute()), self.device, self.runtime, self.stamp)

    def _choose_runtime(self, device: torch.device) -> str:
        """Return the fastest runtime that it was scored in and that is installed; on a GPU onnxruntime."""
        if device.type == "cpu":
            installed = list_installed()
            for name in self.facts.runtimes:
                if name in installed:
                    return name
        return RUNTIMES[0]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return logits, see `Backend`."""
        count, height, width, _ = pixels.shape
        try:
            logits = self.run(np.ascontiguousarray(pixels.cpu().numpy()))
            if logits.shape != (count, self.facts.labels.num_classes, height, width):
                raise ValueError(f"its logits are {logits.shape}")
        except Exception as error:  # see `open_session`
            if is_out_of_memory(error):
                raise torch.OutOfMemoryError(str(error)) from None
            reason = shorten_error(error)
            raise UserError(
                f"{self.path}: can't be run on {width}x{height} pixels ({reason})"
            ) from None
        return torch.from_numpy(logits).to(self.device)


def _stamp(path: Path) -> Stamp:
    return storage_of(path).find_stamp(path) if is_address(path) else find_stamp(path)


def _open_again(place: str, device: torch.device, runtime: str, stamp: Stamp) -> OnnxBackend:
    """Return the copy of a backend, of the same file."""
    path = as_path(place)
    if not path.is_file() or _stamp(path) != stamp:
        raise UserError(f"{path}: was changed or removed since a predictor read it; make it again")
    return OnnxBackend(path, device, runtime)


def open_onnx(
    path: Path,
    device: torch.device,
    *,
    scale: float | None = None,
    runtime: str | None = None,
    **_: Any,
) -> LoadedModel:
    """Return the network in an ONNX file of ours; it runs as it was exported."""
    if not path.is_file():
        raise UserError(f"{path}: not found")
    if runtime not in (None, *RUNTIMES):
        raise UserError(f"--runtime {runtime}: must be one of {', '.join(RUNTIMES)}")
    backend = OnnxBackend(path, device, runtime)
    facts = backend.facts
    if scale is not None:
        own = facts.preprocessing.scale
        raise UserError(f"--scale {scale:g}: this file has its scale, {own:g}; leave the flag out")
    note = f"run by {backend.runtime}"
    if backend.runtime not in facts.runtimes:
        scored = ", ".join(facts.runtimes)
        note = f"warning: {note}, where its masks were not compared with its checkpoint's; that was in {scored}"
    digest = hashlib.sha256(Path(os.fspath(path)).read_bytes()).hexdigest()
    pixels = facts.preprocessing
    return LoadedModel(backend, facts.labels, pixels, facts.threshold, [note], digest=digest)


def describe_network(
    model: LoadedModel, runtimes: Sequence[str] = RUNTIMES[:1], *, form: str = ""
) -> dict[str, str]:
    """Return the metadata by which our own programs know a network."""
    facts = {
        "labels": model.labels.to_dict(),
        "classes": model.labels.class_names,
        "colours": model.labels.colours,
        "preprocessing": model.preprocessing.to_dict(),
        "threshold": model.threshold,
        "format": FORMAT,
        "stride": model.backend.stride,
        "bytes_per_pixel": model.backend.bytes_per_pixel,
        "runtimes": list(runtimes),
        "form": form,
    }
    return {METADATA: json.dumps(facts)}
