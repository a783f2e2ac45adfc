"""Explain what ends a process through no fault of the code."""

from __future__ import annotations

import errno
import os
import re
import traceback
from pathlib import Path

from unet_ddp.distributed.world import World
from unet_ddp.errors import FULL, RunError, UserError
from unet_ddp.files import is_alive

_NO_PLACE = *FULL, errno.EROFS, errno.EACCES, errno.ENAMETOOLONG
_UNLOADED = (
    ImportError,
    SyntaxError,
    NameError,
    AttributeError,
    OSError,
    EOFError,
)  # of a file that is cut
_TOO_MANY = os.strerror(errno.EMFILE)
_COMPILED = "torch._inductor.runtime.compile_tasks."  # modules that torch makes of its cache
_LOST = (
    "it or its process has died, or the network is down; torchrun goes on if --nnodes and --max-restarts "
    "allow it, otherwise start it again on all hosts with --resume"
)
# Messages of the DataLoader and of gloo, and the lines for them: {0} is the text that is found.
_EXPLAINED = {
    "DataLoader timed out.*": (
        "{rank}: a reading process hangs ({0}): the file system does not answer, or a file takes forever; "
        "use --workers 0, or a longer --timeout if the storage is slow; continue with --resume"
    ),
    "unable to allocate shared memory.*": (
        "{rank}: the machine's shared memory is full ({0}); use --workers 0 or a smaller batch, and in a "
        "container a larger --shm-size; continue with --resume"
    ),
    "DataLoader worker .*(?:killed by signal|exited).*": (
        "{rank}: a reading process died ({0}): the machine, or its shared memory, is out of memory; use "
        "fewer --workers, or 0, and in a container a larger --shm-size; continue with --resume"
    ),
    r"\[([^\]\s]+)\]:\d+: (Connection timed out|No route to host|Network is unreachable"
    "|Connection reset by peer|Broken pipe)": f"{{rank}} lost host {{1}} ({{2}}): {_LOST}",
    r"Connection closed by peer \[([^\]\s]+)\]": (
        f"{{rank}} lost host {{1}} (connection closed): {_LOST}"
    ),
}


def explain_error(error: BaseException, world: World) -> str | None:
    """Return one line for an error that is no fault of the code; None if the traceback is needed."""
    if isinstance(error, (UserError, RunError)):
        return str(error)
    reason = str(error)
    rank = f"rank {world.rank} of {world.size}"
    if isinstance(error, MemoryError) or "Caught MemoryError" in reason:
        return (
            f"{rank}: the machine is out of memory ({_last_line(reason)}); use fewer --workers, a "
            "smaller --batch-size with --accumulate to make up for it, or a smaller --scale; continue "
            "a run that had started with --resume"
        )
    if isinstance(error, OSError) and error.errno in _NO_PLACE:
        room = "make room, or " if error.errno in FULL else ""
        return f"{rank}: {error}; {room}use another place or name; continue with --resume"
    if _TOO_MANY in reason:
        advice = "raise the limit (ulimit -n), or use fewer --workers, or 0; continue with --resume"
        return f"{rank}: {_last_line(reason)}: {advice}"
    if cache := _find_damage(error):
        return f"{rank}: {damaged_cache(cache)}"
    if not isinstance(error, RuntimeError):
        return None
    dead = [str(process) for process in world.peers if not is_alive(process)]
    if dead:
        return (
            f"{rank} can't continue: process {' and '.join(dead)} of this run died (out of memory, "
            "or killed); continue with --resume"
        )
    for pattern, text in _EXPLAINED.items():
        if found := re.search(pattern, reason):
            return text.format(found[0], *found.groups(), rank=rank)
    if "timed out" not in reason.lower() and "timeout" not in reason.lower():
        return None
    frames = traceback.extract_tb(error.__traceback__)
    where = [frame.name for frame in frames if "torch" not in frame.filename]
    return (
        f"{rank} waited too long for the others, in {' > '.join(where[-3:])}: one of them hangs or is "
        "far slower; see --timeout, and continue with --resume"
    )


def damaged_cache(folder: Path | str) -> str:
    """Return the line about a cache of torch that has a file which can't be used."""
    return f"torch's cache of compiled code is damaged: remove {folder}, and start again"


def _find_damage(error: BaseException | None) -> str:
    """Return torch's cache if a file that it has made there can't be loaded; else nothing."""
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    while cache and error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        said = " ".join([str(error), *(frame.filename for frame in frames)])
        is_unloaded = isinstance(error, _UNLOADED) and (cache in said or _COMPILED in said)
        if is_unloaded or f"Failed to import {cache}" in said:  # torch's words
            return cache
        error = error.__cause__ or error.__context__
    return ""


def _last_line(text: str) -> str:
    """Return the last line of a message, or of a traceback in it."""
    return (text.strip().splitlines() or ["MemoryError"])[-1]
