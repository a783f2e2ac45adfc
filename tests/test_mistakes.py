"""Mistakes of a user: one ``error:`` line from one rank, exit status 2 on every rank.

A row has a function that makes the mistake in a good data set and run folder and returns further
flags, and parts of the error message.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main, call_train
from unet_ddp.checkpoints.run_files import HEADS
from unet_ddp.network.unet import UNet

PATIENCE = 60  # seconds, on a busy machine: a rank that waits for another waits twice as long
FLAGS = ["--width", "2", "--batch-size", "1", "--workers", "0"]


def unknown_value(folder: Path) -> list[str]:
    """A mask value that the scan did not see: files changed, their sizes and times did not."""
    for path in (folder / "masks").iterdir():
        with Image.open(path) as image:
            image.save(path.with_suffix(".bmp"))
        path.unlink()
    call_train([*data_flags(folder), *FLAGS, "--overwrite"], str(folder))
    for path in (folder / "masks").iterdir():
        before = path.stat()
        with Image.open(path) as image:
            mask = np.where(np.asarray(image) == 255, 77, 0).astype(np.uint8)
        Image.fromarray(mask).save(path)
        assert path.stat().st_size == before.st_size
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return ["--overwrite"]


def contains_a_run(folder: Path, *more: str) -> list[str]:
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.pt").write_bytes(HEADS["last.pt"])
    return [*more]


def no_checkpoint(folder: Path) -> list[str]:
    (folder / "notes.pt").write_text("not weights")
    return ["--load", str(folder / "notes.pt")]


def weights(
    folder: Path, flag: str, *, width: int = 2, channels: int = 3, **changed: float
) -> list[str]:
    """Weights of another program, of which the first value of a tensor is changed."""
    state = UNet(channels, 2, width=width).state_dict()
    for name, value in changed.items():
        state[name.replace("__", ".")].flatten()[0] = value
    torch.save(
        {name: state[name] for name in state if flag == "--load" or "up" not in name},
        folder / "w.pth",
    )
    return [flag, str(folder / "w.pth")]


def weights_of_another_network(folder: Path) -> list[str]:
    torch.save({"block.weight": torch.ones(3)}, folder / "other.pt")
    return ["--load", str(folder / "other.pt")]


FIRST = "inc.double_conv.0.weight"
MISTAKES: dict[str, tuple[Callable[[Path], list[str]], list[str]]] = {
    "missing folder": (lambda f: ["--images", str(f / "nowhere")], ["nowhere: not found"]),
    "unknown value": (unknown_value, ["masks", "x.bmp", "77"]),
    "unknown value in a worker": (
        lambda f: [*unknown_value(f), "--workers", "1"],
        ["masks", "x.bmp", "77"],
    ),
    "contains a run": (contains_a_run, ["checkpoints", "--resume", "--exp-name", "--overwrite"]),
    "no checkpoint": (no_checkpoint, ["notes.pt", "no checkpoint"]),
    "weights of nan": (
        lambda f: weights(f, "--load", outc__conv__bias=math.nan),
        ["w.pth: outc.conv.bias contains nan"],
    ),
    "weights of another network": (
        weights_of_another_network,
        ["other.pt: ", f"{FIRST} is missing in the file"],
    ),
    "another encoder": (
        lambda f: weights(f, "--encoder-weights", width=4),
        ["w.pth: ", f"{FIRST} is (4, 3, 3, 3) in the file, (2, 3"],
    ),
    "encoder of nan": (
        lambda f: weights(f, "--encoder-weights", channels=1, inc__double_conv__0__weight=math.nan),
        [f"w.pth: {FIRST} contains nan"],
    ),
    "nothing to freeze": (
        lambda f: ["--freeze", "encoder"],
        ["--freeze encoder", "--load or --encoder-weights"],
    ),
    "nothing to resume": (lambda f: ["--resume"], ["last.pt: no checkpoint to resume from"]),
    "broken resume": (lambda f: contains_a_run(f, "--resume"), ["last.pt", "no checkpoint"]),
    "unknown flag": (lambda f: ["--epcohs", "3"], ["--epcohs", "--help"]),
    "unknown model": (lambda f: ["--model", "yolo"], ["yolo"]),
    "no recipe": (lambda f: ["--config", "mine.yaml"], ["mine.yaml: "]),
    "recipe for other images": (
        lambda f: ["--config", "carvana"],
        ["--group-pattern '", "; --config carvana sets --group-pattern: give "],
    ),
    # As many minutes as the process has lived, which serves other tests too: see test_dry_run.py.
    "budget of a second": (
        lambda f: ["--budget", "1s"],
        ["--budget 1 s: one epoch of", "start and report", "use at least "],
    ),
}


# Whose mistake it is, of two ranks, and how many ranks a host has. Without the launcher's store rank 0
# has it, as under srun: it is gone when rank 0 is.
PLACES = {
    "rank 0": (0, 2, True),
    "another rank": (1, 2, True),
    "another host": (1, 1, True),
    "rank 0 of srun": (0, 1, False),
    "another host of srun": (1, 1, False),
}
# These files are read on rank 0 alone, so that another host's are nobody's mistake.
READ_ON_RANK_0 = {"missing folder", "contains a run"}
IN_FAST_LANE = {
    ("unknown flag", "another rank"),
    ("unknown flag", "another host"),
    ("lost pair", "another host"),
    ("weights of nan", "rank 0"),
    ("unknown value in a worker", "another host of srun"),
    ("nothing to resume", "rank 0 of srun"),
}
KEPT = {  # in the thorough lane, of the others that take seconds
    ("missing folder", "another rank"),
    ("contains a run", "another host of srun"),
    ("lost pair", "rank 0"),
    ("unknown value in a worker", "another host"),
}
# Found in the words, in files on rank 0, in those of each host, in a reading process.
IN_ALL_PLACES = {name for name, _ in IN_FAST_LANE} | {"missing folder"}


def lanes_of(name: str, place: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a case: those that take seconds are left to `release`, but for a few."""
    if (name, place) in IN_FAST_LANE:
        return []
    is_slow = name in IN_ALL_PLACES | {"contains a run"} and (name, place) not in KEPT
    return [pytest.mark.thorough] + [pytest.mark.release] * is_slow


def lose_pair(folder: Path) -> list[str]:
    """No mistake on rank 0, whose files are the data."""
    for name in ("imgs", "masks"):
        next((folder / name).glob("ax.*")).unlink()
    return []


def train_on_host(
    folders: list[Path], argv: list[list[str]], hosts: int, agent: bool, port: int
) -> tuple[int, str, str]:
    """Train as one of two ranks, each in its own folder, which has the same data as the other's."""
    rank = int(os.environ["RANK"])
    if hosts == 2:
        os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    if not agent:
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE="False", MASTER_PORT=str(port))
    return call_main("train", argv[rank], str(folders[rank]))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(name, place, marks=lanes_of(name, place))
        for name in [*MISTAKES, "lost pair"]
        for place in (PLACES if name in IN_ALL_PLACES else ["another rank", "another host of srun"])
        if name != "lost pair" or place != "another rank"  # the files of a host are its ranks'
    ],
)
def test_a_mistake_of_one_rank_alone_is_said_on_its_host_once(
    ranks: Ranks, tmp_path: Path, name: str, place: str
) -> None:
    """No rank waits for another that does not come."""
    whose, local_size, agent = PLACES[place]
    mistake, said = MISTAKES.get(name, (lose_pair, []))
    folders, argv = [tmp_path / "0", tmp_path / "1"], []
    for rank, folder in enumerate(folders):
        make_set(folder, 5)
        more = mistake(folder) if rank == whose else []
        argv.append(
            ["--images", "imgs", "--masks", "masks", *FLAGS, "--timeout", str(2 * PATIENCE), *more]
        )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    ranks.run(2, os.getpid)  # whose start is not measured
    began = time.monotonic()
    outcomes = ranks.run(2, train_on_host, folders, argv, 3 - local_size, agent, port)
    assert time.monotonic() - began < PATIENCE
    is_read = name != "lost pair" if whose == 0 else name not in READ_ON_RANK_0
    assert [status for status, _, _ in outcomes] == [2 * is_read] * 2, outcomes
    lines = ["".join(err).splitlines() for _, _, err in outcomes]
    if is_read:
        (line,) = lines[0] + lines[1]
        assert line.startswith("error: ")
        assert "(rank 0)" in line or [part for part in said if part not in line] == []
        if name == "lost pair" and local_size == 1:  # before the first step needs it
            assert line.startswith("error: the data is 8 of 10 files (")
        assert local_size == 2 or lines[whose] or "(rank 0)" in line  # a comparison is both hosts'


@pytest.mark.parametrize(
    "size", [pytest.param(1, marks=[pytest.mark.thorough, pytest.mark.release]), 2]
)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_from_one_rank(
    ranks: Ranks, tmp_path: Path, name: str, size: int
) -> None:
    mistake, said = MISTAKES[name]
    argv = [*data_flags(make_set(tmp_path, 5)), *FLAGS, *mistake(tmp_path)]
    before = [(path, path.read_bytes()) for path in (tmp_path / "checkpoints").glob("[!.]*")]
    ranks.run(size, os.getpid)  # whose start is not measured
    began = time.monotonic()
    outcomes = ranks.run(size, call_main, "train", argv, str(tmp_path))
    assert time.monotonic() - began < PATIENCE
    assert [status for status, _, _ in outcomes] == [2] * size, outcomes
    (line,) = "".join(err for _, _, err in outcomes).splitlines()
    assert line.startswith("error: ")
    assert [part for part in said if part not in line] == [], line
    if name == "contains a run":  # a refused run changes nothing
        files = [(path, path.read_bytes()) for path in (tmp_path / "checkpoints").glob("[!.]*")]
        assert files == before != []


def test_a_batch_too_small_for_batch_norm(ranks: Ranks, tmp_path: Path) -> None:
    """One value per channel has no variance; on several ranks there is more than one."""
    make_set(tmp_path, 5)
    argv = [*data_flags(tmp_path), *FLAGS, "--model", "deeplabv3plus", "--encoder", "resnet18"]
    status, _, err = ranks.run(1, call_main, "train", argv, str(tmp_path))[0]
    assert status == 2
    assert err.startswith("error: --batch-size 1") and err.count("\n") == 1
