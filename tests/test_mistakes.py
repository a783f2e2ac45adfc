"""Every mistake of a user: one `error:` line, exit status 2, on every rank, said once.

Each row: what it is called, what makes the mistake in a sound data set and run folder (it
returns further flags), and what the line must say.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main

FLAGS = ["--width", "2", "--epochs", "1", "--batch-size", "1", "--workers", "0"]


def no_such_folder(folder: Path) -> list[str]:
    return ["--images", str(folder / "nowhere")]


def strange_value(folder: Path) -> list[str]:
    """A value that the scan did not see: the files have changed, their size and time have not."""
    for path in (folder / "masks").iterdir():
        with Image.open(path) as image:
            image.save(path.with_suffix(".bmp"))
        path.unlink()
    call_main("train", [*data_flags(folder), *FLAGS, "--overwrite"], str(folder))
    for path in (folder / "masks").iterdir():
        before = path.stat()
        with Image.open(path) as image:
            mask = np.where(np.asarray(image) == 255, 77, 0).astype(np.uint8)
        Image.fromarray(mask).save(path)
        assert path.stat().st_size == before.st_size
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return ["--overwrite"]


def holds_a_run(folder: Path) -> list[str]:
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.pt").write_bytes(b"somebody's")
    return []


def no_checkpoint(folder: Path) -> list[str]:
    (folder / "notes.pt").write_text("not weights")
    return ["--load", str(folder / "notes.pt")]


def nothing_to_resume(folder: Path) -> list[str]:
    return ["--resume"]


def broken_resume(folder: Path) -> list[str]:
    holds_a_run(folder)
    return ["--resume"]


def unknown_flag(folder: Path) -> list[str]:
    return ["--epcohs", "3"]


def unknown_model(folder: Path) -> list[str]:
    return ["--model", "yolo"]


def strange_value_for_a_reading_process(folder: Path) -> list[str]:
    return [*strange_value(folder), "--workers", "1"]


def one_value_per_channel(folder: Path) -> list[str]:
    return ["--model", "deeplabv3plus", "--encoder", "resnet18"]


MISTAKES: list[tuple[Callable[[Path], list[str]], list[str]]] = [
    (no_such_folder, ["nowhere", "no such folder"]),
    (strange_value, ["masks", "x.bmp", "77"]),
    (strange_value_for_a_reading_process, ["masks", "x.bmp", "77"]),
    (holds_a_run, ["checkpoints", "--resume", "--exp-name", "--overwrite"]),
    (no_checkpoint, ["notes.pt", "no checkpoint"]),
    (nothing_to_resume, ["last.pt", "nothing to resume"]),
    (broken_resume, ["last.pt", "no checkpoint"]),
    (unknown_flag, ["--epcohs", "--help"]),
    (unknown_model, ["yolo"]),
]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("mistake", "said"), MISTAKES, ids=lambda v: getattr(v, "__name__", ""))
def test_mistake(
    ranks: Ranks, tmp_path: Path, mistake: Callable[[Path], list[str]], said: list[str], size: int
) -> None:
    make_set(tmp_path, 5)
    more = ranks.run(1, mistake, tmp_path)[0]
    began = time.monotonic()
    outcomes = ranks.run(
        size, call_main, "train", [*data_flags(tmp_path), *FLAGS, *more], str(tmp_path)
    )
    assert time.monotonic() - began < 10
    assert [status for status, _, _ in outcomes] == [2] * size, outcomes
    lines = "".join(err for _, _, err in outcomes).splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    for words in said:
        assert words in lines[0]


def test_a_run_that_is_refused_touches_nothing(ranks: Ranks, tmp_path: Path) -> None:
    make_set(tmp_path, 5)
    holds_a_run(tmp_path)
    ranks.run(1, call_main, "train", [*data_flags(tmp_path), *FLAGS], str(tmp_path))
    held = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert held == {"last.pt", ".lock"}
    assert (tmp_path / "checkpoints" / "last.pt").read_bytes() == b"somebody's"


def test_a_batch_that_batch_norm_can_not_use(ranks: Ranks, tmp_path: Path) -> None:
    """On one rank; on several, the statistics are those of all."""
    make_set(tmp_path, 5)
    words = [*data_flags(tmp_path), *FLAGS, *one_value_per_channel(tmp_path)]
    status, _, err = ranks.run(1, call_main, "train", words, str(tmp_path))[0]
    assert status == 2
    assert err.startswith("error: --batch-size 1") and err.count("\n") == 1
