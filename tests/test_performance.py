"""Fast paths: they change the time, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from unet_ddp.runs.background import Background

from tests.conftest import SEED, data_flags, make_set
from tests.ranks import Ranks, call_main
from tests.test_resume import assert_same_state, last, train
from unet_ddp.errors import UserError
from unet_ddp.network.compiled import compile_network
from unet_ddp.runs import checkpoint
from unet_ddp.training.optimizer import AdamW

SLOW = 0.05  # seconds


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 12, size=(32, 32))


def train_with_slow_files(words: list[str], folder: str) -> tuple[int, str, str]:
    """train.py, with files that take SLOW seconds each."""
    from unet_ddp.data.dataset import SegmentationDataset

    read = SegmentationDataset.__getitem__

    def slowly(self: SegmentationDataset, key: tuple[int, int]) -> object:
        time.sleep(SLOW)
        return read(self, key)

    SegmentationDataset.__getitem__ = slowly  # type: ignore[method-assign]
    try:
        return call_main("train", words, folder)
    finally:
        SegmentationDataset.__getitem__ = read  # type: ignore[method-assign]


def test_what_writes_takes_one_thread() -> None:
    """More OpenMP threads than cores, and libgomp's sleep between all of training's kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    background: Background[int] = Background()
    background.begin(torch.get_num_threads)
    try:
        assert background.wait() == 1
        assert torch.get_num_threads() == 2
    finally:
        background.close()
        torch.set_num_threads(before)


def test_profile_says_where_the_time_goes(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """Two ranks; each step waits for one slow file, and that is what the summary shows."""
    words = [
        *data_flags(images), "--width", "2", "--batch-size", "1", "--workers", "0", "--profile",
        "--validation", "17", "--epochs", "3",
    ]  # fmt: skip
    (status, out, _), (_, silent, _) = ranks.run(2, train_with_slow_files, words, str(tmp_path))
    assert status == 0
    assert "profile of" not in silent
    steps, whole = re.search(r"profile of (\d+) steps, ([\d.]+) ms each:", out).groups()
    parts = {
        name: float(took)
        for name, took in re.findall(r"^  ([a-z-]+(?: [a-z]+)*) +([\d.]+) ms", out, re.M)
    }
    within = parts.pop("all-reduce")
    assert list(parts) == [
        "data wait",
        "host to device",
        "forward",
        "loss",
        "backward",
        "step",
        "other",
    ]
    assert int(steps) == 10
    assert sum(parts.values()) == pytest.approx(float(whole), abs=0.1)
    assert min(parts.values()) >= 0
    assert parts["data wait"] >= 900 * SLOW
    assert 0 < within < parts["forward"] + parts["loss"] + parts["backward"]
    trace = json.loads((tmp_path / "checkpoints" / "profile.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"data wait", "forward", "backward", "aten::convolution"} <= names


@pytest.fixture(scope="module")
def compiled(ranks: Ranks, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    train(ranks, 2, folder, images, "--compile")
    return folder


def test_compiled_training_is_the_same_training(
    ranks: Ranks, images: Path, tmp_path: Path, compiled: Path
) -> None:
    """To rounding; and no file tells of it but by the setting."""
    train(ranks, 2, tmp_path, images)
    one, other = last(compiled), last(tmp_path)
    for part in ("model", "ema"):
        assert one[part].keys() == other[part].keys()
        for name, value in one[part].items():
            assert torch.allclose(value, other[part][name], rtol=1e-3, atol=1e-3), name
    assert one["config"].pop("compile") and not other["config"].pop("compile")
    assert one["config"] == other["config"]
    best = checkpoint.load(compiled / "checkpoints" / "best.pt")
    assert best["model"].keys() == one["model"].keys()


def test_compiled_training_resumes_bit_by_bit(
    ranks: Ranks, images: Path, tmp_path: Path, compiled: Path
) -> None:
    train(ranks, 2, tmp_path, images, "--compile", "--max-steps", "3")
    train(ranks, 2, tmp_path, images, "--resume", "--cache", "--save-every-steps", "1")
    assert_same_state(last(compiled), last(tmp_path))


def test_nothing_to_compile_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match="no C\\+\\+ compiler"):
        compile_network(torch.nn.Identity(), torch.device("cpu"))


def test_the_optimizer_is_torch_s_own() -> None:
    torch.manual_seed(SEED)
    nets = [torch.nn.Linear(5, 3) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    kinds = (AdamW, torch.optim.AdamW)
    optimizers = [
        kind(net.parameters(), lr=0.1, weight_decay=0.01, fused=True)
        for kind, net in zip(kinds, nets, strict=True)
    ]
    for step in range(4):
        inputs = torch.randn(7, 5)
        for net, optimizer in zip(nets, optimizers, strict=True):
            net(inputs).square().sum().backward()
            if step == 2:  # as the engine has a bad step skipped
                optimizer.found_inf, optimizer.grad_scale = torch.ones(()), None
            optimizer.step()
            optimizer.found_inf = torch.zeros(())
            optimizer.zero_grad(set_to_none=True)
        if step == 1:
            for optimizer in optimizers:
                optimizer.load_state_dict(optimizer.state_dict())
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_step_does_not_import_what_only_compiling_needs() -> None:
    """It takes as long as importing torch."""
    program = (
        "import sys, torch; from unet_ddp.training.optimizer import AdamW\n"
        "net = torch.nn.Linear(2, 2); optimizer = AdamW(net.parameters(), fused=True)\n"
        "net(torch.ones(1, 2)).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
        "optimizer.load_state_dict(optimizer.state_dict())\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
