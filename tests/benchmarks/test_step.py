"""benchmarks.step compares the loop and bare steps on the same network, set up as train.py does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import step
from unet_ddp.extras.diagnose import compiled
from unet_ddp.training.losses import Losses, SegmentationLoss


class Compiled(nn.Module):
    """Stands for what torch.compile returns."""

    calls = 0

    def __init__(self, network: nn.Module, *device: Any, **how: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        Compiled.calls += 1
        logits: Tensor = self.network(images)
        return logits


def test_both_loops_are_autotuned_and_of_one_compiled_network_at_the_size_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[tuple[int, ...], bool]] = []
    forward = SegmentationLoss.forward

    def watched(self: SegmentationLoss, logits: Tensor, masks: Tensor) -> Losses:
        seen.append((tuple(logits.shape[2:]), torch.backends.cudnn.benchmark))
        return forward(self, logits, masks)

    monkeypatch.setattr(SegmentationLoss, "forward", watched)
    monkeypatch.setattr(compiled, "compile_network", Compiled)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")  # which the benchmark sets: to be as before afterwards
    argv = ["--size", "48", "32", "--width", "2", "--steps", "2", "--batch-size", "2"]
    step.main([*argv, "--turns", "1", "--workers", "0", "--compile"])
    assert seen == [((32, 48), True)] * 8  # two steps, in a turn and before it, of two loops
    assert Compiled.calls == 8
    assert "| real over bare |" in capsys.readouterr().out
