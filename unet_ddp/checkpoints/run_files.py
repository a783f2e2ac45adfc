"""Names of a run's files, and the first bytes by which a run knows its own."""

from __future__ import annotations

import errno
import filecmp
import json
import os
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from unet_ddp.data.names import PICTURE_HEAD
from unet_ddp.errors import FULL, UserError, join_some
from unet_ddp.files import remove_stale, replacing, write_text

if TYPE_CHECKING:
    from unet_ddp.config import TrainConfig

_CHECKPOINT = b"unet_ddp"  # a key of the first record, which is not compressed
_PAGE = b'<meta name="generator" content="unet_ddp">'
HEADS = {
    "last.pt": _CHECKPOINT,
    "last.1.pt": _CHECKPOINT,
    "best.pt": _CHECKPOINT,
    "epoch_[0-9]*.pt": _CHECKPOINT,
    "config.yaml": b"# unet_ddp",
    "run.json": b'"settings": {',
    "metrics.csv": b"epoch,step,",
    "split.csv": b'"image","mask","group","split"',
    "learning_rate.csv": b"learning_rate,loss",
    "samples.png": PICTURE_HEAD,
    "profile.json": b'"schemaVersion"',
    "report.html": _PAGE,
    "events.out.tfevents.*.unet_ddp": b"",
    "evaluation/scores.json": b'{\n  "model": ',
    "evaluation/per_image.csv": b"image,dice,iou,",
    "evaluation/confusion.csv": b"truth \\ prediction,",
    "evaluation/threshold.csv": b"threshold,dice,iou,",
    "evaluation/calibration.csv": b"from,to,pixels,",
    "evaluation/report.html": _PAGE,
}
"""Bytes at the head of each file, by the pattern of its name: TensorBoard makes its names up."""
_READ = 4096  # bytes of a file
EVALUATION_FILES = tuple(
    name.removeprefix("evaluation/") for name in HEADS if name.startswith("evaluation/")
)
"""All that `evaluate` writes; threshold.csv for two classes only."""
LATE = ("run.json", "learning_rate.csv", "samples.png", "profile.json", "report.html")
"""Files that a run that was stopped may not have yet."""
EVENTS = ".unet_ddp"
"""The ending of our TensorBoard files."""
REPLACED = ".replaced"
"""The folder in a run's of what a start replaces."""
_RUN = ".run"  # names the run that was set aside
_WITHDRAWN = ".withdrawn"  # names files of the start that failed: the run before comes back
_WAITING = 3  # epoch_*.pt in memory
_SHOWN = 20  # files in one message


def _find_pattern(name: str) -> str | None:
    return next((pattern for pattern in HEADS if fnmatchcase(name, pattern)), None)


def is_name_of_run(name: str) -> bool:
    """Return whether a run gives one of its files this name."""
    return _find_pattern(name) is not None


def is_of_run(folder: Path, name: str) -> bool:
    """Return whether a run has written the file `name` of its folder: by its name, and by its first bytes.

    An empty metrics.csv counts: a row that a full disk refused leaves one.
    """
    pattern, path = _find_pattern(name), folder / name
    if pattern is None or not path.is_file():
        return False
    head = b"unreadable"
    with suppress(OSError), path.open("rb") as file:
        head = file.read(_READ)
    return HEADS[pattern] in head or (name == "metrics.csv" and not head)


def find_files(folder: Path) -> list[Path]:
    """Return the files in `folder` that runs have written.

    Its folder evaluation/ is one of `evaluate` if it has scores.json; it may be that of another run.
    """
    is_here = not (folder / "evaluation").is_symlink()  # nothing moves to another disk
    is_evaluated = is_here and is_of_run(folder, "evaluation/scores.json")
    found: set[Path] = set()
    for pattern in HEADS:
        if is_evaluated or "/" not in pattern:
            found.update(folder.glob(pattern))
    return [path for path in sorted(found) if is_of_run(folder, str(path.relative_to(folder)))]


def find_checkpoints(folder: Path) -> list[Path]:
    """Return the files that a new run would lose: checkpoints and rows of metrics.csv.

    Without one, the folder has no run.
    """
    return [
        path for path in find_files(folder) if path.suffix == ".pt" or path.name == "metrics.csv"
    ]


def may_write(config: TrainConfig, name: str) -> bool:
    """Return whether a new run of these settings may give one of its files this name.

    learning_rate.csv is in any case the run's, as its report reads it.
    """
    number, every = name.removeprefix("epoch_").removesuffix(".pt"), config.run.save_every
    if number.isdecimal() and int(number) and name == f"epoch_{int(number):04d}.pt":
        return every > 0 and int(number) % every == 0
    if name == "profile.json":
        return config.launch.profile
    return name in HEADS


def check_free(folder: Path, names: Iterable[str]) -> None:
    """Raise a UserError if files in `folder` have one of `names` and no run has written them."""
    paths = [folder / name for name in sorted(names) if not is_of_run(folder, name)]
    foreign = [str(path) for path in paths if os.path.lexists(path)]
    if foreign:
        it = "it" if len(foreign) == 1 else "them"
        what = join_some(foreign, _SHOWN)
        raise UserError(f"{what}: not of the run, which would replace {it}: rename {it}")


def check_archive(folder: Path, name: str, *, leaves_room: bool) -> None:
    """Refuse an epoch_*.pt whose name a user's file has, or that would take the room of the next last.pt.

    At the end of a run none comes: it need not leave room.

    Raises:
        UserError: see `check_free`.
        OSError: the disk is nearly full.
    """
    check_free(folder, [name])
    last = folder / "last.pt"
    if not (leaves_room and last.is_file()):
        return
    if shutil.disk_usage(folder).free < 2 * last.stat().st_size:  # it is as large
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: the next last.pt needs it")


def _number(archive: str) -> int:
    return int(archive.removeprefix("epoch_").removesuffix(".pt"))


def drop_previous(folder: Path, cause: BaseException) -> bool:
    """Delete last.1.pt if a full disk is the `cause` and that makes room for a last.pt; return whether it does.

    The steps since are worth more than a second copy of those before. last.pt must be whole.
    """
    if not (isinstance(cause, OSError) and cause.errno in FULL):
        return False
    with suppress(OSError):
        last, previous = (folder / name for name in ("last.pt", "last.1.pt"))
        room = shutil.disk_usage(folder).free + previous.stat().st_size
        if room > last.stat().st_size:
            previous.unlink()
            return True
    return False


def order_due(names: Collection[str]) -> list[str]:
    """Return names of checkpoints in the order to write them: --resume finds in the first the others.

    Of the epoch_*.pt that a full disk keeps in memory, the earlier ones are left out.
    """
    archives = sorted((name for name in names if name.startswith("epoch_")), key=_number)
    return [*sorted({*names} - {*archives}, reverse=True), *archives[-_WAITING:]]


def keep_twice(path: Path, to: Path) -> None:
    """Give a file a second name, so that it is never without one; a copy, where it can't have two."""
    second = to.with_name(f".{to.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        os.link(path, second)
    except OSError:
        with replacing(to, durable=True) as copy:
            shutil.copyfile(path, copy)
        return
    try:
        second.replace(to)
    except OSError:
        second.unlink()
        raise


def set_aside(
    folder: Path, names: Collection[str] | None = None, *, stays: Collection[str] = ()
) -> None:
    """Move the files of the run in `folder`, or those in `names`, into a folder there until they are replaced.

    last.pt is the first: without one, `settle` moves the others back. A file in `stays` gets a second name instead.

    Raises:
        OSError: one can't be moved; all are where they were.
    """
    try:
        aside, run = folder / REPLACED, _read_run(folder / "last.pt")
        if run:
            aside.mkdir(exist_ok=True)
            (aside / _RUN).write_text(run)
        found = find_files(folder) if names is None else [folder / name for name in names]
        for path in sorted(filter(Path.is_file, found), key=lambda path: path.name != "last.pt"):
            to = aside / path.relative_to(folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            if path.name in stays:
                keep_twice(path, to)
            else:
                path.replace(to)
    except OSError:
        settle(folder)
        raise
    with suppress(OSError):  # not empty: files of the user's
        (folder / "evaluation").rmdir()


def withdraw(folder: Path, names: Collection[str]) -> None:
    """Delete files of a start that has failed, and bring back what it has set aside.

    A kill meanwhile leaves the rest of it to the next `settle`.
    """
    mark = folder / REPLACED / _WITHDRAWN
    with suppress(OSError):  # on a full disk, only a kill in this moment mixes files of two runs
        write_text(mark, json.dumps([*names]), durable=True)
    _delete(folder, names)
    mark.unlink(missing_ok=True)
    settle(folder)


def _delete(folder: Path, names: Collection[str]) -> None:
    """Delete files of a run that have one of `names`, last.pt first."""
    for path in sorted(find_files(folder), key=lambda path: path.name != "last.pt"):
        if str(path.relative_to(folder)) in names:
            path.unlink()


def settle(folder: Path) -> None:
    """Complete what a kill has left: a run whose replacement was not saved comes back, else it is deleted.

    So does one whose last.pt somebody has put back by hand. What else is there by then stays, and the file of that
    name gets the ending .replaced.
    """
    aside, last = folder / REPLACED, folder / "last.pt"
    if aside.is_dir():
        mark, run = aside / _WITHDRAWN, ""
        with suppress(FileNotFoundError):
            run = (aside / _RUN).read_text()
        is_back = bool(run) and run == _read_run(last)  # put there by hand
        if mark.is_file():
            _delete(folder, {*json.loads(mark.read_text())} - ({"last.pt"} if is_back else set()))
            mark.unlink()
        if is_back or not last.exists():
            moved = [path for path in aside.rglob("*") if path.is_symlink() or not path.is_dir()]
            for path in sorted(moved, key=lambda path: path.name == "last.pt"):
                to = folder / path.relative_to(aside)
                if path == aside / _RUN or _is_copy(path, to):
                    continue
                if os.path.lexists(to):
                    to = to.with_name(f"{to.name}{REPLACED}")
                to.parent.mkdir(exist_ok=True)
                path.replace(to)
        shutil.rmtree(aside, ignore_errors=True)  # a network disk keeps what is open
    for temporary in chain(folder.glob(".*.tmp"), folder.glob("evaluation/.*.tmp")):
        path = temporary.with_name(temporary.name[1:].rsplit(".", 3)[0])
        if is_name_of_run(str(path.relative_to(folder))):
            remove_stale([path])


def _read_run(last: Path) -> str:
    """Return the name that a run has in its last.pt; empty if that can't be read."""
    import torch

    with suppress(Exception):  # of torch, for what is corrupt
        return str(torch.load(last, map_location="cpu", weights_only=True, mmap=True)["run"])
    return ""


def _is_copy(path: Path, other: Path) -> bool:
    return not path.is_symlink() and other.is_file() and filecmp.cmp(path, other, shallow=False)


def advise_on_replaced(path: Path) -> str:
    """Return what to do if a file of a run was set aside by a start that was stopped; empty if it was not."""
    is_replaced = (path.parent / "last.pt").exists()  # by a run that --resume would continue
    if is_replaced or not (path.parent / REPLACED / path.name).exists():
        return ""
    return "; it was set aside: train.py --resume brings its run back"
