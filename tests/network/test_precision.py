"""Mixed precision: where it is on, and in which type."""

from __future__ import annotations

import pytest
import torch

from unet_ddp.errors import UserError
from unet_ddp.network.precision import Precision, has_native_bfloat16

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_bfloat16_on_a_cpu_only_where_asked_for() -> None:
    assert Precision(CPU).dtype == torch.float32
    assert Precision(CPU, dtype="bfloat16").dtype == torch.bfloat16
    assert Precision(CPU, amp=False, dtype="bfloat16").dtype == torch.float32
    assert Precision(CPU, amp=False, dtype="float16").dtype == torch.float32
    with pytest.raises(UserError, match=r"--amp-dtype float16: needs a GPU"):
        Precision(CPU, dtype="float16")


def test_a_cpu_that_may_not_use_its_bfloat16_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_native in (True, False):
        monkeypatch.setattr(
            torch.cpu, "_is_avx512_bf16_supported", lambda is_native=is_native: is_native
        )
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
        assert has_native_bfloat16() is is_native
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
        assert not has_native_bfloat16()


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_autocast_computes_in_the_type_and_leaves_float32_alone_when_off(dtype: str) -> None:
    precision = Precision(CPU, dtype=dtype)
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
    precision = Precision(CUDA, dtype=dtype)
    assert precision.dtype == expected
    assert precision.scaler.is_enabled() == (expected == torch.float16)
    assert dtype != "auto" or Precision(CUDA).dtype == expected
    full = Precision(CUDA, amp=False, dtype=dtype)
    assert full.dtype == torch.float32
    monkeypatch.setattr(torch, "autocast", lambda *args, **how: (*args, how))
    assert precision.autocast() == ("cuda", {"dtype": expected, "enabled": True})
    assert full.autocast() == ("cuda", {"dtype": None, "enabled": False})
