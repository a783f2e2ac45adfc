"""Mixed precision: where it is on, and in which type."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unet_ddp.distributed import device
from unet_ddp.errors import UserError
from unet_ddp.network.precision import (
    Precision,
    train_depthwise_in_float32,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_bfloat16_on_a_cpu_only_where_asked_for() -> None:
    assert Precision(CPU).dtype == torch.float32
    assert Precision(CPU, "bfloat16").dtype == torch.bfloat16
    with pytest.raises(UserError, match=r"--precision float16: needs a GPU"):
        Precision(CPU, "float16")


@pytest.mark.parametrize(
    ("vendor", "has_bfloat16", "has_amx", "is_faster"),
    [
        ("AuthenticAMD", True, False, True),
        ("AuthenticAMD", False, False, False),
        ("GenuineIntel", True, True, True),
        ("GenuineIntel", True, False, False),  # a virtual machine that hides AMX
        (None, True, False, True),  # no such file
    ],
)
def test_a_cpu_takes_bfloat16_only_where_it_is_faster(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vendor: str | None,
    has_bfloat16: bool,
    has_amx: bool,
    is_faster: bool,
) -> None:
    info = tmp_path / "cpuinfo"
    if vendor:
        info.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    monkeypatch.setattr(device, "CPU_INFO", info)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bfloat16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_amx)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert device.is_faster_in_bfloat16() is is_faster
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert not device.is_faster_in_bfloat16()


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_autocast_computes_in_the_type_and_leaves_float32_alone_when_off(dtype: str) -> None:
    precision = Precision(CPU, dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16), precision.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == precision.dtype
    assert not precision.scaler.is_enabled()


@pytest.mark.parametrize(
    ("dtype", "is_native", "expected"),
    [
        ("auto", True, torch.bfloat16),
        ("auto", False, torch.float16),
        ("bfloat16", False, torch.bfloat16),
        ("float16", True, torch.float16),
    ],
)
def test_a_gpu_takes_bfloat16_where_it_is_not_emulated(
    monkeypatch: pytest.MonkeyPatch, dtype: str, is_native: bool, expected: torch.dtype
) -> None:
    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or is_native

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    monkeypatch.setattr(
        "torch.cuda.amp.common.amp_definitely_not_available", lambda: False, raising=True
    )
    precision = Precision(CUDA, dtype)
    assert precision.dtype == expected
    assert precision.scaler.is_enabled() == (expected == torch.float16)
    assert dtype != "auto" or Precision(CUDA).dtype == expected
    full = Precision(CUDA, "float32")
    assert full.dtype == torch.float32
    monkeypatch.setattr(torch, "autocast", lambda *args, **how: (*args, how))
    assert precision.autocast() == ("cuda", {"dtype": expected, "enabled": True})
    assert full.autocast() == ("cuda", {"dtype": None, "enabled": False})


def gradient(layer: nn.Module, images: torch.Tensor, *, amp: bool) -> torch.Tensor:
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        out = layer(images)
    out.float().square().sum().backward()
    weight: Any = layer.weight
    return weight.grad.clone()


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"kernel_size": 5, "groups": 4, "padding": 2}, True),
        ({"kernel_size": 3, "groups": 4, "stride": 2}, True),
        ({"kernel_size": 3, "groups": 4}, False),
        ({"kernel_size": 5, "groups": 2, "stride": 2}, False),
        ({"kernel_size": 5, "stride": 2}, False),
    ],
)
def test_the_slow_ones_train_in_float32(settings: dict[str, Any], changes: bool) -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 4, 9, 9)
    plain = nn.Sequential(nn.Conv2d(4, 4, **settings))
    network = copy.deepcopy(plain)
    train_depthwise_in_float32(network)
    layer = copy.deepcopy(network)[0]  # as the average of the weights is
    assert isinstance(layer, nn.Conv2d) and (type(layer) is nn.Conv2d) != changes
    assert network.state_dict().keys() == plain.state_dict().keys()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(images), plain[0](images))  # scores stay as they were
    exact, plain_half = (gradient(plain[0], images, amp=amp) for amp in (False, True))
    assert not torch.equal(exact, plain_half)
    assert torch.equal(gradient(layer, images, amp=True), exact if changes else plain_half)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(images.bfloat16()).dtype == torch.bfloat16  # as the next layer takes it
