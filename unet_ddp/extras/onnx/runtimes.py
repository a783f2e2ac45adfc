"""The libraries that run ONNX files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from unet_ddp.errors import UserError, check_installed, install_command, words_of
from unet_ddp.files.contents import explain_missing

RUNTIMES = ("onnxruntime", "openvino")

Array = NDArray[Any]

Run = Callable[[Array], Array]
"""The first output of a network for its only input."""


def import_extra(name: str, extra: str, needed_by: object) -> Any:
    """Return a module of an extra, which `needed_by` needs; a UserError if not installed."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime reports to its maker,
    without: Any = {"openvino_telemetry": None}  # and OpenVINO its import, if it finds this package
    sys.modules.update(without)
    check_installed(name.partition(".")[0], extra, needed_by)
    return import_module(name)


def list_installed() -> list[str]:
    """Return the runtimes that are installed."""
    return [name for name in RUNTIMES if not install_command(name, extra_of(name))]


def extra_of(runtime: str) -> str:
    """Return the extra of a runtime."""
    return "onnx" if runtime == RUNTIMES[0] else runtime


def open_session(path: Path, device: torch.device) -> Any:
    """Return onnxruntime's session of a file, or a UserError if it is none."""
    onnxruntime = import_extra("onnxruntime", "onnx", path)
    providers = ["CPUExecutionProvider"]
    gpu = "CUDAExecutionProvider"
    if device.type == "cuda" and gpu in onnxruntime.get_available_providers():
        providers.insert(0, gpu)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it writes to stderr, it raises too
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(os.fspath(path), options, providers=providers)
    except Exception as error:  # onnxruntime raises classes of its own, some of them private
        reason = explain_missing(path, "an ONNX file")
        if not reason:
            reason = f"no ONNX file, or a corrupt one ({shorten_error(error)})"
        raise UserError(f"{path}: {reason}") from error


def open_run(session: Any, path: Path, runtime: str) -> Run:
    """Return what runs a file: its session of onnxruntime, or OpenVINO."""
    if runtime == "openvino":
        return open_openvino(path)
    taken, given = session.get_inputs()[0].name, session.get_outputs()[0].name

    def run(values: Array) -> Array:
        found: Array = session.run([given], {taken: values})[0]
        return found

    return run


def open_openvino(path: Path, precision: str = "f32") -> Run:
    """Return a file run by OpenVINO, in f32 or bf16 where it is not in int8."""
    core = import_extra("openvino", "openvino", path).Core()
    options = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": precision,  # bfloat16 otherwise, where the CPU has it
    }
    try:
        compiled = core.compile_model(core.read_model(os.fspath(path)), "CPU", options)
    except RuntimeError as error:
        raise UserError(f"{path}: OpenVINO can't read it ({shorten_error(error)})") from error

    def run(values: Array) -> Array:
        found: Array = compiled.infer_new_request({0: values})[0]  # for any thread
        return found

    return run


def shorten_error(error: BaseException, *, lines: int | None = None) -> str:
    """Return what a runtime says of a failure, of its first `lines`, in one short line."""
    return words_of("\n".join(str(error).splitlines()[:lines]))[:160]
