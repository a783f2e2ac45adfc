"""--batch-size auto: the largest batch that fits on every rank, and that divides the step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.distributed.test_out_of_memory import CPU as SHORT_OF_CPU
from tests.distributed.test_out_of_memory import CUDA
from tests.ranks import Ranks, call_train
from tests.tiny import CPU, make_data
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.config import NetworkConfig, OptimizationConfig, TrainConfig
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, count_of
from unet_ddp.extras.planners import batch_size
from unet_ddp.extras.planners.batch_size import (
    BatchSizeProbe,
    counting_saved_bytes,
    find_batch_size,
    plan,
)
from unet_ddp.network.architecture import choose_architecture
from unet_ddp.network.precision import Precision
from unet_ddp.runs.build import choose_model
from unet_ddp.runs.plan import RunBuilder
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.run_parts import RunParts
from unet_ddp.training.losses import SegmentationLoss


def new_probe(*, channels: int = 3, **changed: Any) -> BatchSizeProbe:
    return BatchSizeProbe(
        choose_architecture("unet", None, channels=channels, num_classes=2, width=2),
        Preprocessing.for_images(channels, 255, scale=1.0),
        SegmentationLoss(),
        Precision(CPU),
        (32, 48),
        **changed,
    )


def limit(monkeypatch: pytest.MonkeyPatch, most: int, error: Exception | None = None) -> list[int]:
    """Let batches of more than `most` images fail; return those that are tried."""
    tried, inside = list[int](), list[bool]()

    @contextmanager
    def local_only() -> Iterator[None]:
        inside.append(True)
        yield
        inside.clear()

    def compute(self: BatchSizeProbe, batch: int, *, batches: int = 2) -> None:
        torch.rand(3)
        assert inside  # no collective: another rank may have failed
        if batches == 2:
            tried.append(batch)
            if batch > most:
                raise error or torch.OutOfMemoryError(CUDA)

    monkeypatch.setattr(batch_size, "local_only", local_only)
    monkeypatch.setattr(BatchSizeProbe, "compute_gradients", compute)
    return tried


@pytest.mark.parametrize(
    ("share", "start", "most", "tried"),
    [
        (16, 16, 99, [16]),
        (16, 16, 4, [16, 8, 4]),
        (12, 12, 2, [12, 6, 3, 1]),
        (12, 6, 5, [6, 3]),
        (7, 7, 6, [7, 1]),
        (15, 15, 3, [15, 5, 1]),
    ],
)
def test_batches_are_halved_through_the_divisors_of_a_step(
    monkeypatch: pytest.MonkeyPatch, share: int, start: int, most: int, tried: list[int]
) -> None:
    found = limit(monkeypatch, most)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    outcome = new_probe().find_largest(share, start=start, processes=1)
    assert outcome == (tried[-1], "")
    assert found == tried
    assert torch.equal(torch.get_rng_state(), before)


def test_where_no_image_fits_the_reason_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limit(monkeypatch, 0, RuntimeError(SHORT_OF_CPU)) == []
    reason = "tried to allocate 1.50 GiB"
    assert new_probe().find_largest(4, start=4, processes=1) == (0, reason)


@pytest.mark.parametrize(("device", "kept"), [(CPU, []), (torch.device("cuda"), ["cuda"])])
def test_a_gpu_s_random_generator_is_kept_too(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, kept: list[str]
) -> None:
    found: list[str] = []
    limit(monkeypatch, 99)

    def fork(devices: list[torch.device]) -> nullcontext[None]:
        found.extend(map(str, devices))
        return nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", fork)
    probe = replace(new_probe(), precision=SimpleNamespace(device=device))
    assert probe.find_largest(1, start=1, processes=1) == (1, "")
    assert found == kept


def test_no_tensor_has_more_elements_than_kernels_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest is the way up's last: the skipped and the enlarged channels, 2 of each."""
    tried, of_one = limit(monkeypatch, 99), 4 * 32 * 48
    for most, largest in ((4 * of_one, 4), (4 * of_one - 1, 2), (1, 1)):
        assert new_probe(most_elements=most).find_largest(16, start=16, processes=1)[0] == largest
    assert tried == [4, 2, 1]


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1, RuntimeError("broken code"))
    with pytest.raises(RuntimeError, match="broken code"):
        new_probe().find_largest(2, start=2, processes=1)


def test_it_tries_a_whole_step_with_the_optimizer_s_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches, as the second one meets the first one's gradients; moments and average."""
    shapes, held, forward = [], [], batch_size.forward
    zeros_like = torch.zeros_like

    def watched(network: Any, preprocess: Any, images: torch.Tensor) -> torch.Tensor:
        assert network.training
        assert torch.backends.cudnn.benchmark  # as in training: its trials take memory
        shapes.append((tuple(images.shape), images.dtype))
        return forward(network, preprocess, images)

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor)
        return zeros_like(tensor)

    monkeypatch.setattr(batch_size, "forward", watched)
    monkeypatch.setattr(torch, "zeros_like", counted)
    for has_average, copies, channels in ((False, 2, 3), (True, 3, 1)):
        held.clear()
        shapes.clear()
        new_probe(channels=channels, has_average=has_average).compute_gradients(3)
        assert shapes == [((3, 32, 48, channels), torch.uint8)] * 2
        assert len(held) == copies * len({id(tensor) for tensor in held})


@pytest.mark.parametrize(("total", "spare"), [(8 << 30, 1 << 30), (80 << 30, 4 << 30)])
def test_a_gpu_keeps_a_twentieth_and_at_least_a_gib(
    monkeypatch: pytest.MonkeyPatch, total: int, spare: int
) -> None:
    gpu = SimpleNamespace(total_memory=total)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    assert batch_size.spare_memory(torch.device("cuda")) == spare


def test_a_cpu_is_not_asked_for_more_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its system would kill the run instead of refusing."""
    tried = limit(monkeypatch, 99)
    probe = new_probe()
    probe.__dict__["saved_per_image"] = 1000
    need = 4 * 1000 * 3 // 2  # four images, and half as much again
    for free, processes, largest in (
        (need, 1, 4), (need - 1, 1, 2), (2 * need, 2, 4), (2 * need - 1, 2, 2), (0, 1, 1),
    ):  # fmt: skip
        monkeypatch.setattr(batch_size, "free_memory", lambda device, free=free: free)
        assert probe.find_largest(4, start=4, processes=processes) == (largest, "")
    assert tried == [4, 2, 4, 2, 1]  # one image is always tried
    tight = new_probe(checkpointing=True)
    tight.__dict__["saved_per_image"] = 1000
    monkeypatch.setattr(batch_size, "free_memory", lambda device: 4 * 1000 * 4)
    assert tight.find_largest(4, start=4, processes=1) == (4, "")
    monkeypatch.setattr(batch_size, "free_memory", lambda device: 4 * 1000 * 4 - 1)
    assert tight.find_largest(4, start=4, processes=1) == (2, "")


def test_the_bytes_of_an_image_are_measured() -> None:
    plain, checkpointed = (
        new_probe().saved_per_image,
        new_probe(checkpointing=True).saved_per_image,
    )
    assert plain > 32 * 48 * 2 * 4 * 4  # at least four float32 activations of the first level
    assert checkpointed < plain / 2
    assert new_probe(frozen="encoder").saved_per_image < 0.8 * plain  # the way up's alone


def test_saved_memory_is_counted_once() -> None:
    values = torch.ones(10, requires_grad=True)
    with counting_saved_bytes() as saved:
        (values * values).exp().sum()  # saves `values` twice, and the result of exp
    assert sorted(saved.values()) == [40, 40]


def test_all_ranks_take_the_smallest_batch() -> None:
    asked: list[tuple[int, int, int]] = []

    class Fits(BatchSizeProbe):
        def find_largest(self, share: int, *, start: int, processes: int) -> tuple[int, str]:
            asked.append((share, start, processes))
            return 4, ""

    probe = Fits(**vars(new_probe()))

    def world_of(*others: tuple[int, str]) -> Any:
        return SimpleNamespace(
            gather=lambda own: [own, *others], local_size=2, size=3, connect=lambda: None
        )

    assert find_batch_size(probe, world_of((2, ""), (8, "")), 16, start=8) == 2
    assert asked == [(16, 8, 2)]
    with pytest.raises(RunError, match=r"not one image fits .* rank 2 of 3: too much; use --crop"):
        find_batch_size(probe, world_of((2, ""), (0, "too much")), 16, start=8)


# -- the plan ---------------------------------------------------------------------------------


def new_config(**options: Any) -> TrainConfig:
    return TrainConfig(optimization=OptimizationConfig(batch_size="auto", **options))


@pytest.mark.parametrize("crop", [None, (64, 48)])
def test_auto_is_settled_with_a_probe_of_the_run(
    monkeypatch: pytest.MonkeyPatch, crop: tuple[int, int] | None
) -> None:
    asked: list[Any] = []

    def find(probe: Any, world: World, share: int, *, start: int) -> int:
        asked.append(probe)
        return 1

    monkeypatch.setattr(batch_size, "find_batch_size", find)
    data = make_data(crop_size=crop)
    for ema, checkpointing in ((0.0, False), (0.9, True)):
        config = replace(new_config(ema=ema), network=NetworkConfig(checkpointing=checkpointing))
        model = choose_model(config, data, StartPoint(), World().device, parts=RunParts())
        plan(config, RunBuilder(model, data, StartPoint(), World(), 0.0, RunParts()))
        probe = asked.pop()
        assert probe.architecture is model.architecture and probe.loss is model.loss
        assert probe.preprocessing is model.preprocessing and probe.precision is model.precision
        assert probe.size == (crop or (32, 40))
        assert (probe.checkpointing, probe.has_average) == (checkpointing, ema > 0)


RUN = StartPoint({"images_per_step": 16})


@pytest.mark.parametrize(
    ("resumed", "options", "count", "processes", "asked", "expected"),
    [
        (StartPoint(), {}, 100, 1, (16, 16), (2, 8, None)),
        (StartPoint(), {}, 100, 3, (5, 5), (1, 5, None)),  # 15 of 16 images
        (StartPoint(), {}, 7, 2, (3, 3), (1, 3, None)),  # no more than there are
        (StartPoint(), {}, 1, 2, (1, 1), (1, 1, None)),
        (StartPoint(), {"images_per_step": 24}, 9, 2, (12, 12), (2, 6, None)),
        (StartPoint(), {"accumulate": 4}, 100, 1, (16, 16), (2, 8, None)),
        (RUN, {"images_per_step": 16, "accumulate": 4}, 100, 1, (16, 4), (2, 8, None)),
        (RUN, {"images_per_step": 16, "accumulate": 3}, 100, 1, (16, 16), (2, 8, None)),
    ],
)
def test_auto_becomes_numbers(
    monkeypatch: pytest.MonkeyPatch,
    resumed: StartPoint,
    options: dict[str, Any],
    count: int,
    processes: int,
    asked: tuple[int, int],
    expected: tuple[int, int, None],
) -> None:
    found = []

    def find(probe: Any, world: World, share: int, *, start: int) -> int:
        found.append((share, start))
        return expected[0]

    monkeypatch.setattr(batch_size, "find_batch_size", find)
    config, data, resumed = new_config(**options), make_data(), StartPoint(resumed.content)
    data = replace(data, split=replace(data.split, training=[data.split.training[0]] * count))
    model = choose_model(new_config(), data, StartPoint(), World().device, parts=RunParts())
    settled = plan(config, RunBuilder(model, data, resumed, World(size=processes), 0.0, RunParts()))
    assert found == [asked]
    assert tuple(settled.values()) == expected
    assert list(settled) == ["batch_size", "accumulate", "images_per_step"]
    (note,) = resumed.notes
    batch, accumulate, _ = expected
    images, ranks = count_of(batch, "image"), count_of(processes, "process")
    start = f"batch size auto: {images} at once on each of {ranks}"
    more = (
        f", {accumulate} times per step for {batch * accumulate * processes}; batch statistics and "
        f"Dice are those of {batch * processes} images"
    )
    assert note == start + (more if accumulate > 1 else "")


# -- on two ranks -----------------------------------------------------------------------------

FLAGS = ["--width", "2", "--epochs", "1", "--validation", "20", "--workers", "0", "--ema", "0.9"]


def train_short_of_memory(
    module: str, most: int, argv: list[str], folder: str
) -> tuple[int, str, str]:
    """Run train.py where rank 1 runs out of memory with more than `most` images at once."""
    import importlib
    import os

    found = importlib.import_module(module)
    forward = found.forward

    def limited(network: Any, preprocess: Any, images: torch.Tensor) -> torch.Tensor:
        if os.environ["RANK"] == "1" and len(images) > most:
            raise torch.OutOfMemoryError(CUDA)
        return forward(network, preprocess, images)

    found.forward = limited
    try:
        return call_train(argv, folder)
    finally:
        found.forward = forward


def last(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "checkpoints" / "last.pt")


def test_one_rank_out_of_memory_ends_both_and_auto_finds_what_fits(
    ranks: Ranks, tmp_path: Path
) -> None:
    """3 images fit on rank 1, of its 8: 2 divide them. The run is that of these very numbers."""
    make_set(tmp_path, 20)
    argv = [*data_flags(tmp_path), *FLAGS]
    outcomes = ranks.run(
        2, train_short_of_memory, "unet_ddp.training.step", 3, [*argv, "--batch-size", "8"],
        str(tmp_path),
    )  # fmt: skip
    assert [status for status, _, _ in outcomes] == [1, 1]
    lines = "".join(err for _, _, err in outcomes).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(
        "error: rank 1 of 2: the machine is out of memory in training: tried"
    )
    assert "--batch-size 4 --accumulate 2 keeps the 16 images per step" in lines[0]

    auto, given = tmp_path / "auto", tmp_path / "given"
    auto.mkdir()
    given.mkdir()
    outcomes = ranks.run(
        2, train_short_of_memory, "unet_ddp.extras.planners.batch_size", 3,
        [*argv, "--batch-size", "auto"], str(auto),
    )  # fmt: skip
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert "batch size auto: 2 images at once on each of 2 processes, 4 times" in outcomes[0][1]
    argv += ["--batch-size", "2", "--images-per-step", "16"]
    outcomes = ranks.run(2, call_train, argv, str(given))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    one, other = last(auto), last(given)
    for part in ("model", "ema"):
        assert all(torch.equal(one[part][name], other[part][name]) for name in other[part])
    for content in (one, other):
        assert content["config"]["batch_size"] == 2 and content["config"]["accumulate"] == 4
        assert content["images_per_step"] == 16
