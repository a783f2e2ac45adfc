"""Memory that does not suffice is told with what would fit; --batch-size auto finds what fits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main
from tests.test_resume import assert_same_state, last
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.network.architecture import choose_architecture
from unet_ddp.network.precision import Precision
from unet_ddp.training.batch_size import Trial
from unet_ddp.training.losses import DiceCrossEntropy

# torch's own words on CUDA, c10/cuda/CUDACachingAllocator.cpp
CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.65 GiB of "
    "which 1.20 GiB is free. Including non-PyTorch memory, this process has 22.40 GiB memory in use. "
    "Of the allocated memory 21.90 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch "
    "but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
FLAGS = ["--width", "2", "--epochs", "1", "--validation", "20", "--workers", "0"]
SHORT: dict[str, Callable[[], Exception]] = {
    "GPU": lambda: torch.OutOfMemoryError(CUDA),
    "CPU": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)"),
    "host": lambda: MemoryError("Unable to allocate 7.03 MiB for an array"),
}  # fmt: skip


def train_short_of_memory(
    place: str, kind: str, rank: int, most: int, words: list[str], folder: str
) -> tuple[int, str, str]:
    """train.py where `place` (module.function) fails on `rank` with more than `most` images."""
    import importlib

    module = importlib.import_module(place.rpartition(".")[0])
    name = place.rpartition(".")[2]
    kept = getattr(module, name)

    def limited(first: Any, batches: Any, *rest: Any, **named: Any) -> Any:
        batches = list(batches) if name == "gradients" else batches
        count = len(batches[0].image) if name == "gradients" else most + 1
        if int(os.environ["RANK"]) == rank and count > most:
            raise SHORT[kind]()
        return kept(first, batches, *rest, **named)

    setattr(module, name, limited)
    try:
        return call_main("train", words, folder)
    finally:
        setattr(module, name, kept)


@pytest.mark.parametrize(
    ("place", "kind", "said"),
    [
        ("unet_ddp.training.step.gradients", "GPU", ["in training", "2.50 GiB more", "23.65 GiB, 1.20 GiB are free", "--batch-size 4 --accumulate 2 keeps the 8 images per step", "--batch-size auto", "--checkpointing", "--scale below 1", "--resume"]),
        ("train.evaluate", "GPU", ["in scoring", "--scale"]),
        ("unet_ddp.training.step.gradients", "CPU", ["1.00 GiB more were wanted", "--batch-size 4 --accumulate 2"]),
        ("unet_ddp.training.step.gradients", "host", ["Unable to allocate 7.03 MiB", "--workers"]),
    ],
)  # fmt: skip
def test_too_little_memory_is_one_line_with_what_would_fit(
    ranks: Ranks, tmp_path: Path, place: str, kind: str, said: list[str]
) -> None:
    """What the line says is typed, and the run goes on."""
    make_set(tmp_path, 12)
    words = [*data_flags(tmp_path), *FLAGS, "--batch-size", "8"]
    (outcome,) = ranks.run(1, train_short_of_memory, place, kind, 0, 4, words, str(tmp_path))
    status, _, err = outcome
    assert status == 1 and err.startswith("error: ") and err.count("\n") == 1, err
    for text in said:
        assert text in err
    if place == "unet_ddp.training.step.gradients":
        words = ["--resume", "--workers", "0", "--batch-size", "4", "--accumulate", "2"]
        (outcome,) = ranks.run(1, train_short_of_memory, place, kind, 0, 4, words, str(tmp_path))
        assert outcome[0] == 0, outcome
        assert last(tmp_path)["images_per_step"] == 8


def test_one_of_two_ranks_out_of_memory(ranks: Ranks, tmp_path: Path) -> None:
    """The other waits in a collective meanwhile: it ends with the one that speaks."""
    make_set(tmp_path, 12)
    words = [*data_flags(tmp_path), *FLAGS, "--batch-size", "4"]
    place = "unet_ddp.training.step.gradients"
    outcomes = ranks.run(2, train_short_of_memory, place, "GPU", 1, 1, words, str(tmp_path))
    assert [status for status, _, _ in outcomes] == [1, 1]
    said = "".join(err for _, _, err in outcomes).splitlines()
    assert len(said) == 1 and said[0].startswith("error: rank 1 of 2: the machine is out of memory")
    assert "--batch-size 2 --accumulate 2 keeps the 8 images per step" in said[0]


def find(ranks: Ranks, folder: Path, most: int, *words: str) -> str:
    """What a run on two ranks says with `--batch-size auto`, `most` images fitting on the second."""
    folder.mkdir(exist_ok=True)
    argv = ["--batch-size", "auto", "--workers", "0", *words]
    place = "unet_ddp.training.batch_size.gradients"
    outcomes = ranks.run(2, train_short_of_memory, place, "GPU", 1, most, argv, str(folder))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    return outcomes[0][1]


def test_auto_finds_what_fits_on_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    """3 images fit on rank 1, of its 8: 2 divide them. The run is that of these very numbers."""
    make_set(tmp_path, 20)
    new = [*data_flags(tmp_path), *FLAGS, "--ema", "0.9"]
    out = find(ranks, tmp_path / "auto", 3, *new)
    assert (
        "batch size auto: 2 image(s) at once fit on each of 2 process(es), 4 times per step" in out
    )
    assert "batch statistics and Dice are those of 4 images" in out
    (tmp_path / "given").mkdir()
    argv = [*new, "--batch-size", "2", "--images-per-step", "16"]
    outcomes = ranks.run(2, call_main, "train", argv, str(tmp_path / "given"))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    auto, given = last(tmp_path / "auto"), last(tmp_path / "given")
    assert_same_state(auto, given)
    assert auto["config"]["batch_size"] == 2 and auto["config"]["accumulate"] == 4
    assert auto["images_per_step"] == given["images_per_step"] == 16


def test_auto_keeps_a_run_s_batch_where_it_fits(ranks: Ranks, tmp_path: Path) -> None:
    """More memory changes nothing, less makes it smaller; the images per step stay."""
    make_set(tmp_path, 20)
    run = tmp_path / "run"
    words = [*data_flags(tmp_path), *FLAGS, "--images-per-step", "8", "--epochs", "3"]
    assert "auto: 2 image(s)" in find(ranks, run, 2, *words, "--max-steps", "1")
    assert "auto: 2 image(s)" in find(ranks, run, 99, "--resume", "--max-steps", "2")
    assert "auto: 1 image(s)" in find(ranks, run, 1, "--resume", "--max-steps", "3")
    assert last(run)["images_per_step"] == 8
    argv = ["--resume", "--images-per-step", "4"]
    outcomes = ranks.run(2, call_main, "train", argv, str(run))
    assert outcomes[0][0] == 2 and "the run takes 8 in each" in "".join(o[2] for o in outcomes)


def test_auto_where_nothing_fits(ranks: Ranks, tmp_path: Path) -> None:
    make_set(tmp_path, 12)
    argv = [*data_flags(tmp_path), *FLAGS, "--batch-size", "auto"]
    place = "unet_ddp.training.batch_size.gradients"
    outcomes = ranks.run(2, train_short_of_memory, place, "GPU", 1, 0, argv, str(tmp_path))
    assert [status for status, _, _ in outcomes] == [1, 1]
    said = "".join(err for _, _, err in outcomes)
    assert said.count("\n") == 1
    assert "not one image fits into the memory of rank 1 of 2: 2.50 GiB more" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--images-per-step", "9", "--batch-size", "2"], "2 process(es) take 4 at once"),
        (["--images-per-step", "9", "--batch-size", "auto"], "2 process(es) take 2 at once"),
        (["--images-per-step", "8", "--batch-size", "2", "--accumulate", "4"], "means --accumulate 2"),
    ],
)  # fmt: skip
def test_images_that_make_no_step(
    ranks: Ranks, tmp_path: Path, words: list[str], said: str
) -> None:
    make_set(tmp_path, 12)
    outcomes = ranks.run(
        2, call_main, "train", [*data_flags(tmp_path), *FLAGS, *words], str(tmp_path)
    )
    assert [status for status, _, _ in outcomes] == [2, 2]
    assert said in "".join(err for _, _, err in outcomes)


def new_trial(**how: Any) -> Trial:
    return Trial(
        choose_architecture("unet", None, channels=3, num_classes=2, width=4),
        Preprocessing.for_images(3, 255, scale=1.0),
        DiceCrossEntropy(),
        Precision(torch.device("cpu")),
        (64, 64),
        **how,
    )


def test_a_trial_leaves_no_trace() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert new_trial().largest([2, 1], 1) == (2, "")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_cpu_is_asked_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its system would kill the run, not refuse: twice the memory, twice the images."""
    for count in (1, 2, 4):
        room = int(new_trial()._kept_by_one * 1.5 * count) + 1
        monkeypatch.setattr("unet_ddp.training.batch_size.available_memory", lambda room=room: room)
        assert new_trial().largest([8, 4, 2, 1], 1)[0] == count
        assert new_trial().largest([8, 4, 2, 1], 2)[0] == max(1, count // 2)
    whole = new_trial()._kept_by_one
    assert new_trial(checkpointing=True)._kept_by_one < whole / 2


def test_other_errors_in_a_trial_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken code")

    monkeypatch.setattr("unet_ddp.training.batch_size.gradients", broken)
    with pytest.raises(RuntimeError, match="broken code"):
        new_trial().largest([2, 1], 1)
