"""Errors that are no fault of the code are one line."""

from __future__ import annotations

import errno
import os

import pytest

from unet_ddp.distributed import failures
from unet_ddp.distributed.failures import explain_error
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError

TWO = World(1, 2, peers=(os.getppid(),))


@pytest.mark.parametrize(
    ("error", "start", "advice"),
    [
        (UserError("a.png: empty"), "a.png: empty", ""),
        (RunError("disk full"), "disk full", ""),
        (MemoryError("Unable to allocate 7.03 MiB"), "rank 1 of 2: the machine is out of memory (Unable to allocate 7.03 MiB)", "use fewer --workers"),
        (MemoryError(), "rank 1 of 2: the machine is out of memory (MemoryError)", "--batch-size with --accumulate"),
        (RuntimeError("Caught MemoryError in DataLoader worker process 0.\nTraceback\nMemoryError: full"), "rank 1 of 2: the machine is out of memory (MemoryError: full)", "--resume"),
        (RuntimeError("DataLoader timed out after 8 seconds\nmore"), "rank 1 of 2: a reading process hangs (DataLoader timed out after 8 seconds)", "use --workers 0, or a longer --timeout"),
        (RuntimeError("x\nunable to allocate shared memory(shm) for file </torch_1>"), "rank 1 of 2: the machine's shared memory is full (unable to allocate shared", "--shm-size"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.\nmore"), "rank 1 of 2: a reading process died (DataLoader worker (pid 7) is killed by signal: Killed.)", "fewer --workers"),
        (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), "rank 1 of 2: a reading process died (DataLoader worker (pid(s) 7) exited", "--shm-size"),
        (OSError(errno.ENOSPC, "No space left on device", "/a/b"), "rank 1 of 2: [Errno 28] No space left on device: '/a/b'", "make room, or use another place or name"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "nn"), "rank 1 of 2: [Errno 36] File name too long: 'nn'", "use another place or name"),
        (OSError(errno.EACCES, "Permission denied", "a/best.pt"), "rank 1 of 2: [Errno 13] Permission denied: 'a/best.pt'; use another place", "--resume"),
        (OSError(errno.EROFS, "Read-only file system"), "rank 1 of 2: [Errno 30] Read-only file system; use another place", "--resume"),
        (RuntimeError("[gloo] Timed out waiting 5000ms for recv"), "rank 1 of 2 waited too long for the others, in ", "see --timeout"),
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:545] Read error [10.0.0.2]:175: No route to host. This is"), "rank 1 of 2 lost host 10.0.0.2 (No route to host)", "start it again on all hosts with --resume"),
        (RuntimeError("[/x/pair.cc:547] Connection closed by peer [10.0.0.2]:175. This"), "rank 1 of 2 lost host 10.0.0.2 (connection closed)", "--resume"),
        (RuntimeError("[/x/pair.cc:545] Read error [fe80::2]:175: Connection timed out"), "rank 1 of 2 lost host fe80::2 (Connection timed out)", "--nnodes"),
        (RuntimeError("NCCL watchdog timeout"), "rank 1 of 2 waited too long for the others, in ", "--resume"),
    ],
)  # fmt: skip
def test_errors_that_are_no_fault_of_the_code_are_one_line(
    error: Exception, start: str, advice: str
) -> None:
    line = explain_error(error, TWO)
    assert line is not None
    assert line.startswith(start) and advice in line
    assert "\n" not in line.replace(str(error), "")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("broken code"),
        KeyError("x"),
        OSError("DataLoader worker is killed by signal"),
        RuntimeError("DataLoader worker complains"),
        KeyboardInterrupt(),
    ],
)
def test_a_fault_of_the_code_needs_its_traceback(error: Exception) -> None:
    assert explain_error(error, TWO) is None


def test_a_dead_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "is_alive", lambda process: process != 8)
    line = explain_error(RuntimeError("Connection closed by peer"), World(1, 3, peers=(7, 8)))
    assert line is not None
    assert line.startswith("rank 1 of 3 can't continue: process 8 of this run died (out of memory")
    both = World(peers=(8, 8))
    assert "process 8 and 8 of" in str(explain_error(RuntimeError("timeout"), both))
    assert explain_error(KeyError("x"), both) is None


def test_a_timeout_says_where() -> None:
    def validate() -> None:
        raise RuntimeError("Timed out")

    with pytest.raises(RuntimeError) as caught:
        validate()
    line = explain_error(caught.value, TWO)
    assert "in test_a_timeout_says_where > validate: one of them hangs" in str(line)
