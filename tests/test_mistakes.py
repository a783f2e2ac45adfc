"""Mistakes of a user: one ``error:`` line from one rank, exit status 2 on every rank.

A row has a function that makes the mistake in a good data set and run folder and returns further
flags, and parts of the error message.
"""

from __future__ import annotations

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
from tests.ranks import Ranks, call_main
from unet_ddp.network.unet import UNet

FLAGS = ["--width", "2", "--batch-size", "1", "--workers", "0"]


def missing_folder(folder: Path) -> list[str]:
    return ["--images", str(folder / "nowhere")]


def unknown_value(folder: Path) -> list[str]:
    """A mask value that the scan did not see: files changed, their sizes and times did not."""
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


def contains_a_run(folder: Path) -> list[str]:
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.pt").write_bytes(b"somebody's")
    return []


def no_checkpoint(folder: Path) -> list[str]:
    (folder / "notes.pt").write_text("not weights")
    return ["--load", str(folder / "notes.pt")]


def weights_of_nan(folder: Path) -> list[str]:
    state = UNet(3, 2, width=2).state_dict()
    torch.save({**state, "outc.conv.bias": torch.full((2,), torch.nan)}, folder / "nan.pt")
    return ["--load", str(folder / "nan.pt")]


def weights_of_another_network(folder: Path) -> list[str]:
    torch.save({"block.weight": torch.ones(3)}, folder / "other.pt")
    return ["--load", str(folder / "other.pt")]


def another_encoder(folder: Path) -> list[str]:
    state = UNet(3, 2, width=4).state_dict()
    torch.save({name: state[name] for name in state if "up" not in name}, folder / "e.pth")
    return ["--encoder-weights", str(folder / "e.pth")]


def encoder_of_nan(folder: Path) -> list[str]:
    state = UNet(1, 2, width=2).state_dict()
    state["inc.double_conv.0.weight"][0, 0, 0, 0] = torch.nan
    torch.save(state, folder / "e.pth")
    return ["--encoder-weights", str(folder / "e.pth")]


def nothing_to_freeze(folder: Path) -> list[str]:
    return ["--freeze", "encoder"]


def nothing_to_resume(folder: Path) -> list[str]:
    return ["--resume"]


def broken_resume(folder: Path) -> list[str]:
    contains_a_run(folder)
    return ["--resume"]


def unknown_flag(folder: Path) -> list[str]:
    return ["--epcohs", "3"]


def unknown_model(folder: Path) -> list[str]:
    return ["--model", "yolo"]


def unknown_value_in_a_worker(folder: Path) -> list[str]:
    return [*unknown_value(folder), "--workers", "1"]


def one_value_per_channel(folder: Path) -> list[str]:
    return ["--model", "deeplabv3plus", "--encoder", "resnet18"]


def no_recipe(folder: Path) -> list[str]:
    return ["--config", "mine.yaml"]


def recipe_for_other_images(folder: Path) -> list[str]:
    return ["--config", "carvana"]


def budget_of_a_second(folder: Path) -> list[str]:
    return ["--budget", "1s"]


MISTAKES: list[tuple[Callable[[Path], list[str]], list[str]]] = [
    (missing_folder, ["nowhere: not found"]),
    (unknown_value, ["masks", "x.bmp", "77"]),
    (unknown_value_in_a_worker, ["masks", "x.bmp", "77"]),
    (contains_a_run, ["checkpoints", "--resume", "--exp-name", "--overwrite"]),
    (no_checkpoint, ["notes.pt", "no checkpoint"]),
    (weights_of_nan, ["nan.pt: outc.conv.bias contains nan"]),
    (weights_of_another_network, ["other.pt: ", "inc.double_conv.0.weight is missing in the file"]),
    (another_encoder, ["e.pth: ", "inc.double_conv.0.weight is (4, 3, 3, 3) in the file, (2, 3"]),
    (encoder_of_nan, ["e.pth: inc.double_conv.0.weight contains nan"]),
    (nothing_to_freeze, ["--freeze encoder", "--load or --encoder-weights"]),
    (nothing_to_resume, ["last.pt: no checkpoint to resume from"]),
    (broken_resume, ["last.pt", "no checkpoint"]),
    (unknown_flag, ["--epcohs", "--help"]),
    (unknown_model, ["yolo"]),
    (no_recipe, ["mine.yaml: "]),
    (
        recipe_for_other_images,
        ["--group-pattern '", "; --config carvana sets --group-pattern: give "],
    ),
    # As many minutes as the process has lived, which serves other tests too: see test_dry_run.py.
    (budget_of_a_second, ["--budget 1 s: one epoch of", "start and report", "use at least "]),
]


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
READ_ON_RANK_0 = {
    missing_folder, contains_a_run,
}  # fmt: skip


def lost_pair(folder: Path) -> list[str]:
    """No mistake on rank 0, whose files are the data."""
    for name in ("imgs", "masks"):
        next((folder / name).glob("ax.*")).unlink()
    return []


IN_FAST_LANE = {
    (unknown_flag, "another rank"),
    (unknown_flag, "another host"),
    (lost_pair, "another host"),
    (weights_of_nan, "rank 0"),
    (unknown_value_in_a_worker, "another host of srun"),
    (nothing_to_resume, "rank 0 of srun"),
}


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
    ("mistake", "said", "place"),
    [
        pytest.param(
            mistake, said, place,
            marks=() if (mistake, place) in IN_FAST_LANE else pytest.mark.thorough,
            id=f"{mistake.__name__}-{place}",
        )
        for mistake, said in [*MISTAKES, (lost_pair, [])]
        for place in PLACES
        if mistake is not lost_pair or place != "another rank"  # the files of a host are its ranks'
    ],
)  # fmt: skip
def test_a_mistake_of_one_rank_alone_is_said_on_its_host_once(
    ranks: Ranks,
    tmp_path: Path,
    mistake: Callable[[Path], list[str]],
    said: list[str],
    place: str,
) -> None:
    """No rank waits for another that does not come."""
    whose, local_size, agent = PLACES[place]
    folders, argv = [tmp_path / "0", tmp_path / "1"], []
    for rank, folder in enumerate(folders):
        make_set(folder, 5)
        more = ranks.run(1, mistake, folder)[0] if rank == whose else []
        argv.append(["--images", "imgs", "--masks", "masks", *FLAGS, "--timeout", "60", *more])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    began = time.monotonic()
    outcomes = ranks.run(2, train_on_host, folders, argv, 3 - local_size, agent, port)
    assert time.monotonic() - began < 20
    is_read = mistake is not lost_pair if whose == 0 else mistake not in READ_ON_RANK_0
    assert [status for status, _, _ in outcomes] == [2 * is_read] * 2, outcomes
    lines = ["".join(err).splitlines() for _, _, err in outcomes]
    if is_read:
        (line,) = lines[0] + lines[1]
        assert line.startswith("error: ")
        assert "(rank 0)" in line or [part for part in said if part not in line] == []
        if mistake is lost_pair and local_size == 1:  # before the first step needs it
            assert line.startswith("error: the data is 8 of 10 files (")
        assert local_size == 2 or lines[whose] or "(rank 0)" in line  # a comparison is both hosts'


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.thorough), 2])
@pytest.mark.parametrize(("mistake", "said"), MISTAKES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_mistake_is_one_line_from_one_rank(
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
    assert [part for part in said if part not in lines[0]] == [], lines


def test_a_refused_run_changes_nothing(ranks: Ranks, tmp_path: Path) -> None:
    make_set(tmp_path, 5)
    contains_a_run(tmp_path)
    ranks.run(1, call_main, "train", [*data_flags(tmp_path), *FLAGS], str(tmp_path))
    files = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert files == {"last.pt", ".lock"}
    assert (tmp_path / "checkpoints" / "last.pt").read_bytes() == b"somebody's"


def test_a_batch_too_small_for_batch_norm(ranks: Ranks, tmp_path: Path) -> None:
    """One value per channel has no variance; on several ranks there is more than one."""
    make_set(tmp_path, 5)
    argv = [*data_flags(tmp_path), *FLAGS, *one_value_per_channel(tmp_path)]
    status, _, err = ranks.run(1, call_main, "train", argv, str(tmp_path))[0]
    assert status == 2
    assert err.startswith("error: --batch-size 1") and err.count("\n") == 1
