"""--compile: the network itself stays, and a machine that can't compile says so at once."""

from __future__ import annotations

import importlib.util
import logging
import shutil
from os import fspath

import pytest
import torch

from unet_ddp.errors import UserError
from unet_ddp.network.compiled import compile_network

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
        compile_network(torch.nn.Identity(), device)


@pytest.mark.parametrize(
    ("device", "has"),
    [(CPU, "g++"), (CPU, "clang++"), (CPU, "c++"), (CUDA, "gcc"), (CUDA, "clang"), (CUDA, "cc")],
)
def test_any_usual_compiler_will_do(installed: set[str], device: torch.device, has: str) -> None:
    installed.update((has, "triton"))
    network = torch.nn.Identity()
    assert compile_network(network, device) == (network, {"dynamic": False})
    assert logging.getLogger("torch.utils.cpp_extension").level == logging.ERROR


@pytest.mark.parametrize(("device", "variable"), [(CPU, "CXX"), (CUDA, "CC")])
def test_the_variable_that_names_a_compiler_is_read(
    installed: set[str], monkeypatch: pytest.MonkeyPatch, device: torch.device, variable: str
) -> None:
    installed.update(("/opt/mine", "triton"))
    monkeypatch.setenv(variable, "/opt/mine")
    compile_network(torch.nn.Identity(), device)


@pytest.mark.parametrize(
    ("device", "processes", "goes_on"), [(CUDA, 2, True), (CUDA, 1, False), (CPU, 2, False)]
)
def test_on_several_gpus_what_cannot_be_compiled_runs_as_it_is(
    installed: set[str], device: torch.device, processes: int, goes_on: bool
) -> None:
    from torch._dynamo import config

    installed.update(("gcc", "g++", "triton"))
    with config.patch(suppress_errors=False):  # and puts it back
        compile_network(torch.nn.Identity(), device, processes=processes)
        assert config.suppress_errors is goes_on
