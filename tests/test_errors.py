"""One line for every error, and none for a reader that has left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from unet_ddp.errors import one_line, quiet_pipe


def test_one_line() -> None:
    assert one_line(ValueError("größe 3")) == "größe 3"
    assert one_line("a\nb\tc\x1b[1m") == r"a\nb\tc\x1b[1m"
    assert one_line("bad\udcffname") == r"bad\udcffname"


def test_output_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(SystemExit) as stop, quiet_pipe():
            print("one line")  # buffered: the pipe breaks at the flush
        assert stop.value.code == 128 + signal.SIGPIPE
        print("more", flush=True)  # as Python does at exit
        monkeypatch.undo()


@pytest.mark.parametrize("error", [SystemExit(3), ValueError("other")])
def test_other_errors_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, quiet_pipe():
        raise error
    assert caught.value is error


def test_a_program_whose_output_goes_to_head() -> None:
    """A real pipe, closed before the program writes: no traceback, not even at exit."""
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-c", "from unet_ddp.cli import parse_train; parse_train(['-h'])"]
    done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert done.stderr == b"" and done.returncode == 128 + signal.SIGPIPE
