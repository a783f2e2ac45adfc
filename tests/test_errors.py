"""One line for every error, and none for a reader that has left."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

from unet_ddp.errors import one_line, survive_lost_output


def test_one_line() -> None:
    assert one_line(ValueError("größe 3")) == "größe 3"
    assert one_line("a\nb\tc\x1b[1m") == r"a\nb\tc\x1b[1m"
    assert one_line("bad\udcffname") == r"bad\udcffname"


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def closed_terminal() -> int:
    master, terminal = os.openpty()
    os.close(master)
    return terminal


@pytest.mark.parametrize("unbuffered", [False, True], ids=["", "python -u"])
@pytest.mark.parametrize("lost", [closed_pipe, full_disk, closed_terminal])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_output_that_nobody_can_take_is_dropped(
    monkeypatch: pytest.MonkeyPatch, name: str, lost: Callable[[], int], unbuffered: bool
) -> None:
    raw: Any = io.FileIO(lost(), "w")
    buffer = raw if unbuffered else io.BufferedWriter(raw)
    before = io.TextIOWrapper(buffer, "ascii", "replace", write_through=unbuffered)
    monkeypatch.setattr(sys, name, before)
    survive_lost_output()
    stream = getattr(sys, name)
    assert stream is not before and stream.fileno() == raw.fileno()
    assert (stream.encoding, stream.errors) == ("ascii", "replace")
    tqdm.write("ä" * 70_000, file=stream)  # more than any buffer
    list(tqdm(range(3), file=stream, mininterval=0))
    print("end", file=stream, flush=True)
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN  # as Python starts
    raw.close()


def test_output_that_is_read_stays_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        monkeypatch.setattr(sys, "stdout", log)
        print("before")
        survive_lost_output()
        print("größe", flush=True)
        log.flush()
        assert (tmp_path / "log").read_text(encoding="utf-8") == "before\ngröße\n"


def test_a_notebook_keeps_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a number, that of the kernel's terminal, and is no file."""

    class Stream(io.StringIO):
        def fileno(self) -> int:
            return 1

    monkeypatch.setattr(sys, "stdout", stream := Stream())
    survive_lost_output()
    assert sys.stdout is stream


def test_streams_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = io.StringIO()
    monkeypatch.setattr(sys, "stdout", inside)
    monkeypatch.setattr(sys, "stderr", None)  # closed before the start: 2>&-
    survive_lost_output()
    assert sys.stdout is inside
    tqdm.write("dropped", file=sys.stderr)
    sys.stderr.close()


@pytest.mark.parametrize("name", ["train.py", "-m unet_ddp"])
def test_a_program_whose_output_goes_to_head(name: str) -> None:
    """A real pipe, closed before the program writes: no traceback, not even at exit."""
    writer = closed_pipe()
    program = [sys.executable, *name.split(), "--help"]
    done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert done.stderr == b"" and done.returncode == 0
