"""Too little memory is one line with the amounts and the flags that need less."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unet_ddp.config import DataConfig, NetworkConfig, OptimizationConfig, TrainConfig
from unet_ddp.distributed.device import is_out_of_memory
from unet_ddp.distributed.out_of_memory import describe_shortage, explain_out_of_memory
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError

# torch's messages: c10/cuda/CUDACachingAllocator.cpp, c10/core/impl/alloc_cpu.cpp
CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.65 GiB of "
    "which 1.20 GiB is free. Including non-PyTorch memory, this process has 22.40 GiB memory in use. "
    "Of the allocated memory 21.90 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch "
    "but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
CPU = (
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1610612736 bytes. Error code "
    "12 (Cannot allocate memory)"
)
GPU_WORLD = World(device=torch.device("cuda"))


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("of any message"), True),
        (RuntimeError(CPU), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("GET was unable to find an engine to execute this computation"), True),
        (
            RuntimeError(
                "NCCL error in: a.cpp:77, unhandled cuda error\nLast error:\n"
                "Cuda failure 2 'out of memory'"
            ),
            True,
        ),
        (RuntimeError("NCCL error in: a.cpp:77, unhandled system error"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_errors_of_memory_are_known(error: RuntimeError, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory


@pytest.mark.parametrize(
    ("text", "shortage"),
    [
        (CUDA, "tried to allocate 2.50 GiB; 1.20 GiB of 23.65 GiB are free, this process uses 22.40 GiB"),
        (CUDA.replace("this process has", "it has"), "tried to allocate 2.50 GiB; 1.20 GiB of 23.65 GiB are free"),
        (CPU, "tried to allocate 1.50 GiB"),
        ("HIP out of memory. Tried to allocate 2.50 GiB.", "HIP out of memory. Tried to allocate 2.50 GiB."),
        (CUDA.partition("Tried")[0] + CUDA.partition("GiB. ")[2], "CUDA out of memory. " + CUDA.partition("GiB. ")[2][:100]),
        ("CUDA error:\n  out of memory" + "." * 200, "CUDA error: out of memory" + "." * 95),
    ],
)  # fmt: skip
def test_the_amounts_are_shown(text: str, shortage: str) -> None:
    assert describe_shortage(RuntimeError(text)) == shortage


def explain(
    phase: str, config: TrainConfig | None = None, world: World | None = None, text: str = CPU
) -> str:
    with (
        pytest.raises(RunError) as error,
        explain_out_of_memory(config or TrainConfig(), world or World(), phase),
    ):
        raise (torch.OutOfMemoryError if text == CUDA else RuntimeError)(text)
    return str(error.value)


def with_options(**options: object) -> TrainConfig:
    return TrainConfig(optimization=replace(OptimizationConfig(), **options))  # type: ignore[arg-type]


def test_the_line_names_device_phase_and_amounts() -> None:
    start = "the machine is out of memory in training: tried to allocate 1.50 GiB; --batch-size 2 "
    assert explain("training").startswith(start)
    start = "the GPU is out of memory in building: tried to allocate 2.50 GiB; 1.20 GiB of "
    assert explain("building", world=GPU_WORLD, text=CUDA).startswith(start)
    assert explain("training", world=World(1, 2)).startswith("rank 1 of 2: the machine is out of ")


@pytest.mark.parametrize(
    ("batch", "accumulate", "processes", "advice"),
    [
        (8, 1, 1, "--batch-size 4 --accumulate 2 keeps the 8 images per step"),
        (9, 1, 1, "--batch-size 3 --accumulate 3 keeps the 9 images per step"),
        (6, 2, 4, "--batch-size 3 --accumulate 4 keeps the 48 images per step"),
        (2, 1, 1, "--batch-size 1 --accumulate 2 keeps the 2 images per step"),
        (1, 4, 1, None),
        ("auto", 1, 1, None),
    ],
)
def test_a_smaller_batch_keeps_the_images_of_a_step(
    batch: int, accumulate: int, processes: int, advice: str | None
) -> None:
    config = with_options(batch_size=batch, accumulate=accumulate)
    line = explain("training", config, World(size=processes))
    assert ("--batch-size" in line) == (advice is not None)
    if advice is not None:
        assert f"{advice}, and --batch-size auto finds the largest batch that fits; " in line
        assert "--batch-size" not in explain("validation", config, World(size=processes))


def test_only_settings_that_help_are_named() -> None:
    training = explain("training")
    assert (
        "less memory is needed with --checkpointing, or in a new run a --scale below 1;" in training
    )
    assert training.endswith("; continue with --resume")
    assert not explain("building").endswith("--resume")  # there is no run yet
    assert "--checkpointing" in explain("building")
    assert "--checkpointing" not in explain("validation")
    small = TrainConfig(data=DataConfig(scale=0.25), network=NetworkConfig(checkpointing=True))
    assert "less memory is needed with in a new run a --scale below 0.25" in explain(
        "training", small
    )
    for network in (NetworkConfig(encoder="resnet18"), NetworkConfig(model="fpn")):
        assert "--checkpointing" not in explain("training", TrainConfig(network=network))
    full = with_options(precision="float32")
    assert "--precision auto" in explain("training", full, GPU_WORLD)
    assert "--precision auto" not in explain("training", full)
    assert "--precision auto" not in explain("training", world=GPU_WORLD)


def test_other_errors_are_not_hidden() -> None:
    for error in (RuntimeError("broken code"), ValueError("can't allocate memory")):
        with (
            pytest.raises(type(error)) as caught,
            explain_out_of_memory(TrainConfig(), World(), "training"),
        ):
            raise error
        assert caught.value is error
    with explain_out_of_memory(TrainConfig(), World(), "training"):
        pass
