"""--compile: the network itself stays, and a machine that can't compile says so at once."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from os import fspath
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import reset, utils

from tests.tiny import make_loss
from unet_ddp.data.labels import IGNORE_ID
from unet_ddp.distributed.failures import explain_error
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.extras.diagnose.compiled import compile_network, log_uncompiled

pytestmark = pytest.mark.source  # torch traces the functions, and mutmut's around them

# As a linker writes one: the table of sections, two of 64 bytes, is at its end.
LIBRARY = struct.pack("<5s27xQQ6xHHHH2x", b"\x7fELF\x02", 64, 3000, 56, 1, 64, 2) + bytes(3000 + 64)
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The programs and modules that this machine has; torch.compile only notes how it is called."""
    found: set[str] = set()
    monkeypatch.setattr(shutil, "which", lambda name: name if fspath(name) in found else None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in found else None)
    monkeypatch.setattr(torch, "compile", lambda network, **how: (network, how))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    return found


@pytest.mark.parametrize(
    ("device", "has", "missing"),
    [
        (CPU, (), r"no C\+\+ compiler \(g\+\+ or clang\+\+\)"),
        (CPU, ("gcc", "cc", "clang"), r"no C\+\+ compiler"),
        (CUDA, ("gcc",), "triton is not installed"),
        (CUDA, ("triton", "g++"), r"no C compiler \(gcc or clang\)"),
    ],
)
def test_nothing_to_compile_with(
    installed: set[str], device: torch.device, has: tuple[str, ...], missing: str
) -> None:
    installed.update(has)
    with pytest.raises(UserError, match=f"--compile: {missing}"):
        compile_network(nn.Identity(), nn.Identity(), World(device=device))


@pytest.mark.parametrize(
    ("device", "has", "named"),
    [
        (CPU, "g++", ""),
        (CPU, "clang++", ""),
        (CPU, "c++", ""),
        (CUDA, "gcc", ""),
        (CUDA, "clang", ""),
        (CUDA, "cc", ""),
        (CPU, "/opt/mine", "CXX"),
        (CUDA, "/opt/mine", "CC"),
    ],
)
def test_any_usual_compiler_will_do_and_one_that_the_environment_names(
    installed: set[str], monkeypatch: pytest.MonkeyPatch, device: torch.device, has: str, named: str
) -> None:
    installed.update((has, "triton"))
    if named:
        monkeypatch.setenv(named, has)
    network = nn.Identity()
    assert compile_network(network, nn.Identity(), World(device=device)) == (
        network,
        {"dynamic": False},
    )
    assert logging.getLogger("torch.utils.cpp_extension").level == logging.ERROR


@pytest.mark.parametrize(
    ("device", "processes", "goes_on"), [(CUDA, 2, True), (CUDA, 1, False), (CPU, 2, False)]
)
def test_on_several_gpus_what_cannot_be_compiled_runs_as_it_is(
    installed: set[str], device: torch.device, processes: int, goes_on: bool
) -> None:
    from torch._dynamo import config

    installed.update(("gcc", "g++", "triton"))
    with config.patch(suppress_errors=False):  # and puts it back
        compile_network(nn.Identity(), nn.Identity(), World(size=processes, device=device))
        assert config.suppress_errors is goes_on


# -- the loss --------------------------------------------------------------------------------


@pytest.mark.usefixtures("_new_counters")
@pytest.mark.parametrize(
    "options",
    [{}, {"loss": "lovasz_ce"},
     {"loss": "dice_focal", "label_smoothing": 20.0, "hard_pixels": 40.0, "boundary_weight": 2.0}],
)  # fmt: skip
def test_a_compiled_loss_is_the_loss(monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    """In one graph, by torch's compiler without the code that it generates; on ranks, test_performance."""
    monkeypatch.setattr(shutil, "which", str)
    compile_module = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **how: compile_module(self, backend="aot_eager", **how)
    )
    masks = torch.randint(0, 3, (2, 20, 24), dtype=torch.uint8)
    masks[:, :3] = IGNORE_ID
    start, found = torch.randn(2, 3, 20, 24), []
    for compiled in (False, True):
        loss, logits = make_loss(**options), start.clone().requires_grad_()
        if compiled:
            compile_network(nn.Identity(), loss, World())
        losses = loss(logits, masks)
        losses.total.backward()
        found.append((*losses, logits.grad))
    torch.testing.assert_close(*found)
    assert utils.counters["stats"]["unique_graphs"] == 1 and said() == []


# -- what was not compiled ------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, images: Tensor) -> Tensor:
        return self.change(2 * images) + 1


def branch(values: Tensor) -> Tensor:
    return values if values.sum() > 0 else -values


def scale(values: Tensor) -> Tensor:
    return values * values.sum().item()


@pytest.fixture
def _new_counters() -> Iterator[None]:
    reset()
    utils.counters.clear()
    yield
    reset()
    utils.counters.clear()


def run_compiled(change: Callable[[Tensor], Tensor], backend: object = "eager") -> None:
    torch.compile(Layer(change), backend=backend, dynamic=False)(torch.ones(3))


def said() -> list[str]:
    lines: list[str] = []
    log_uncompiled(lines.append)
    return lines


@pytest.mark.usefixtures("_new_counters")
@pytest.mark.parametrize("breaks", [branch, scale])
def test_what_is_not_compiled_is_said_in_a_line(breaks: Callable[[Tensor], Tensor]) -> None:
    run_compiled(torch.relu)
    assert said() == []
    run_compiled(breaks)
    (line,) = said()
    assert re.match(r"compile: [1-9]\d* graph breaks?, 0 functions that failed; these", line)


@pytest.mark.usefixtures("_new_counters")
def test_a_function_that_fails_to_compile_is_said() -> None:
    from torch._dynamo import config

    def fail(*_: object) -> None:
        raise RuntimeError("no such kernel")

    with config.patch(suppress_errors=True):
        run_compiled(torch.relu, fail)
    (line,) = said()
    assert line.startswith("compile: 0 graph breaks, 1 function that failed; these parts run")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_cut_file_in_torchs_cache_is_one_line(
    installed: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    installed.add("g++")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    code = tmp_path / "ab" / "code.so"
    code.parent.mkdir()
    code.write_bytes(LIBRARY)
    compile_network(nn.Identity(), nn.Identity(), World())
    code.write_bytes(LIBRARY[: int(len(LIBRARY) * share)])
    os.utime(code, (0, 0))  # nobody is writing it
    with pytest.raises(UserError, match=f"code.so: is cut.*remove {tmp_path}"):
        compile_network(nn.Identity(), nn.Identity(), World())


def test_a_file_that_another_process_writes_is_waited_for(
    installed: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.add("g++")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (tmp_path / "code.so").write_bytes(LIBRARY[:1000])
    monkeypatch.setattr(
        time, "sleep", lambda seconds: (tmp_path / "code.so").write_bytes(LIBRARY) and None
    )
    compile_network(nn.Identity(), nn.Identity(), World())


def test_a_cache_that_cannot_be_written_is_one_line(
    installed: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.add("g++")
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"is a file; .*TORCHINDUCTOR_CACHE_DIR"):
        compile_network(nn.Identity(), nn.Identity(), World())


@pytest.mark.parametrize(
    "error",
    [
        ImportError("{cache}/ab/code.so: file too short"),
        AttributeError(
            "module 'torch._inductor.runtime.compile_tasks.cab' has no attribute 'call'"
        ),
        RuntimeError("Failed to import {cache}/ab/code.py\nSyntaxError: unexpected EOF"),
    ],
)
def test_what_cannot_be_loaded_from_torchs_cache_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    outer = RuntimeError("backend='inductor' raised")
    outer.__context__ = type(error)(str(error).format(cache=tmp_path))
    assert str(explain_error(outer, World())).endswith(f"remove {tmp_path}, and start again")
    outer.__context__ = type(error)("of other code")
    assert explain_error(outer, World()) is None
