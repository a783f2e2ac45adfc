"""The files of a run in a folder that may contain other files, too.

The list `.files` names the files that a run has written. What it does not name is the user's: no start
replaces or deletes it, `--overwrite` or not. A new file is written as `.new.NAME`; then the list names
it; then it gets its name. So where `.new.NAME` is left by a kill, a file NAME is not the run's.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from unet_ddp.errors import UserError, join_some
from unet_ddp.files import remove_stale, write_text

if TYPE_CHECKING:
    from unet_ddp.config import TrainConfig

LIST = ".files"
_SHOWN = 20  # files in one message
CHECKPOINTS = ("last.pt", "last.1.pt", "best.pt", "epoch_[0-9]*.pt")
FILES = (
    *CHECKPOINTS, "run.json", "config.yaml", "metrics.csv", "split.csv", "learning_rate.csv", "samples.png",
    "profile.json", "report.html",
)  # fmt: skip
EVALUATION_FILES = (
    "scores.json", "per_image.csv", "confusion.csv", "threshold.csv", "calibration.csv", "report.html"
)  # fmt: skip
"""All that `evaluate` writes; threshold.csv for two classes only."""
LATE = ("run.json", "learning_rate.csv", "samples.png", "profile.json", "report.html")
"""Files that a run that was stopped may not have yet."""
EVENTS = ".unet_ddp"
"""The ending of our TensorBoard files, whose names TensorBoard makes up."""
_EVENTS = f"events.out.tfevents.*{EVENTS}"
_NAMES = (
    *FILES, "events.out.tfevents.*", *(f"evaluation/{name}" for name in EVALUATION_FILES)
)  # fmt: skip


def read_owned(folder: Path) -> set[str]:
    """Return the names of the files in `folder` that runs have written; some may be gone.

    A folder without a list, or with a damaged one, but with a last.pt, has a run: what is named as its
    files are is its own.
    """
    listed = _read_list(folder)
    if listed is not None:
        return {name for name in listed if not _staged(folder / name).exists()}
    if (folder / "last.pt").is_file() or (folder / "last.1.pt").is_file():
        return _find_named(folder)
    return set()


def _read_list(folder: Path) -> set[str] | None:
    """Return the names in the list; None without one, or if it is damaged."""
    if not (folder / LIST).is_file():
        return None
    text, _, checksum = (folder / LIST).read_bytes().rpartition(b"\n# ")
    if checksum != _checksum(text):
        return None
    return set(filter(is_name_of_run, text.decode(errors="replace").splitlines()))


def _checksum(text: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(text)


def _staged(path: Path) -> Path:
    return path.with_name(f".new.{path.name}")


def _find_named(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for pattern in _NAMES for path in folder.glob(pattern)}


def adopt_run(folder: Path, names: set[str]) -> None:
    """Count `names` as the run's, which is resumed in `folder`; without a list, all that it has."""
    named = _find_named(folder)
    if _read_list(folder) is not None:
        named &= names
    _write_list(folder, named | read_owned(folder))


def _write_list(folder: Path, names: set[str]) -> None:
    if names != _read_list(folder):
        text = "\n".join(sorted(names))
        checksum = _checksum(text.encode()).decode()
        write_text(folder / LIST, f"{text}\n# {checksum}", durable=True)


def settle_list(folder: Path) -> None:
    """Complete or remove what kills have left unfinished, and take off the list what is gone."""
    for name in _read_list(folder) or ():
        path = folder / name
        if _staged(path).exists() and not os.path.lexists(path):
            _staged(path).replace(path)
    staged: list[Path] = []
    for name in _NAMES:
        staged += folder.glob(str(_staged(Path(name))))
    _remove_staged(folder, staged)
    for temporary in chain(folder.glob(".*.tmp"), folder.glob("evaluation/.*.tmp")):
        path = temporary.with_name(temporary.name[1:].rsplit(".", 3)[0].removeprefix(".new."))
        if path.name == LIST or is_name_of_run(str(path.relative_to(folder))):
            remove_stale([path, _staged(path)])


def _remove_staged(folder: Path, staged: Sequence[Path]) -> None:
    if _read_list(folder) is not None:  # first: they show which names are not the run's
        _write_list(folder, {name for name in read_owned(folder) if os.path.lexists(folder / name)})
    for path in staged:
        path.unlink(missing_ok=True)


def is_name_of_run(name: str) -> bool:
    """Return whether a run gives one of its files this name, in any version."""
    return any(fnmatchcase(name, known) for known in _NAMES)


def may_write(config: TrainConfig, name: str) -> bool:
    """Return whether a new run of these settings may give one of its files this name.

    learning_rate.csv is in any case the run's, as its report reads it.
    """
    number, every = name.removeprefix("epoch_").removesuffix(".pt"), config.run.save_every
    if number.isdecimal() and int(number) and name == f"epoch_{int(number):04d}.pt":
        return every > 0 and int(number) % every == 0
    if name == "profile.json":
        return config.launch.profile
    return name in FILES


def find_owned(folder: Path) -> list[Path]:
    """Return the existing files in `folder` that runs have written."""
    names = read_owned(folder) | {path.name for path in folder.glob(_EVENTS)}
    paths = [folder / name for name in sorted(names)]
    return [path for path in paths if path.is_file()]


def find_checkpoints(folder: Path) -> list[Path]:
    """Return the files that a new run would lose: checkpoints and rows of metrics.csv.

    Without one, the folder has no run, or one that was stopped before its first save.
    """
    return [
        path for path in find_owned(folder) if path.suffix == ".pt" or path.name == "metrics.csv"
    ]


@contextmanager
def owning(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """Yield where to write a run's file `path`: in its place, or beside it until the list has its name.

    `folder` is the run's folder (default: the file's own). A file that is not written is not recorded.

    Raises:
        UserError: the file already exists and is the user's.
        OSError: the list can't be written, or the file can't get its name.
    """
    folder = folder or path.parent
    name, staged = str(path.relative_to(folder)), _staged(path)
    if name in read_owned(folder):
        yield path
        return
    check_free(folder, [name])
    _remove_staged(folder, [staged])  # of an attempt that failed
    try:
        yield staged
        if staged.exists():  # there may be nothing to write
            record_owned(folder, [name])
            staged.replace(path)
    except BaseException:
        with suppress(OSError):
            _remove_staged(folder, [staged])
        raise


def record_owned(folder: Path, names: Iterable[str]) -> None:
    """Write that `names` are files of the run in `folder`.

    Raises:
        UserError: one of them already exists and is the user's.
        OSError: the list can't be written.
    """
    names = set(names)
    check_free(folder, names)
    _write_list(folder, names | read_owned(folder))


def check_free(folder: Path, names: Iterable[str]) -> None:
    """Raise a UserError if files in `folder` have one of `names` and are the user's."""
    paths = sorted(folder / name for name in set(names) - read_owned(folder))
    foreign = [str(path) for path in paths if os.path.lexists(path)]
    if foreign:
        it = "it" if len(foreign) == 1 else "them"
        what = join_some(foreign, _SHOWN)
        raise UserError(f"{what}: not of the run, which would replace {it}: rename {it}")


def delete_owned(folder: Path) -> None:
    """Delete the files that runs have written into `folder`, and no others."""
    _write_list(folder, read_owned(folder))  # without one, a kill here leaves a list
    delete_files(folder, find_owned(folder))
    with suppress(OSError):  # not empty: files of the user's
        (folder / "evaluation").rmdir()
    (folder / LIST).unlink(missing_ok=True)


def delete_files(folder: Path, paths: Sequence[Path]) -> None:
    """Delete files of the run in `folder`, and take them off the list."""
    staged = [path.replace(_staged(path)) for path in paths]
    _remove_staged(folder, staged)
