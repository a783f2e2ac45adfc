"""The files of a run in a folder that may contain other files, too.

A run writes the name of each of its files into the list `.files` before it writes the file. What the
list does not name is the user's: no start replaces or deletes it, `--overwrite` or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError, join_some
from unet_ddp.files import write_text

LIST = ".files"
_SHOWN = 20  # files in one message
CHECKPOINTS = ("last.pt", "last.1.pt", "best.pt", "epoch_[0-9]*.pt")
FILES = (
    *CHECKPOINTS, "config.yaml", "metrics.csv", "split.csv", "learning_rate.csv", "samples.png",
    "profile.json", "report.html",
)  # fmt: skip
EVALUATION_FILES = (
    "scores.json", "per_image.csv", "confusion.csv", "threshold.csv", "calibration.csv", "report.html"
)  # fmt: skip
"""All that `evaluate` writes; threshold.csv for two classes only."""
LATE = ("learning_rate.csv", "samples.png", "profile.json", "report.html")
"""Files that a run that was stopped may not have yet."""
EVENTS = ".unet_ddp"
"""The ending of our TensorBoard files, whose names TensorBoard makes up."""
_EVENTS = f"events.out.tfevents.*{EVENTS}"
_NAMES = (
    *FILES, "events.out.tfevents.*", *(f"evaluation/{name}" for name in EVALUATION_FILES)
)  # fmt: skip


def read_owned(folder: Path) -> set[str]:
    """Return the names of the files in `folder` that runs have written; some may be gone.

    A folder without a list, but with a last.pt, has the run of an earlier version.
    """
    listing = folder / LIST
    if listing.is_file():
        names = listing.read_text(encoding="utf-8", errors="replace").splitlines()
        return {name for name in names if is_name_of_run(name)}
    if not any((folder / name).is_file() for name in ("last.pt", "last.1.pt")):
        return set()
    return _find_named(folder)


def _find_named(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for pattern in _NAMES for path in folder.glob(pattern)}


def adopt_run(folder: Path, names: set[str]) -> None:
    """Count `names` as the run's, which is resumed in `folder`; without a list, all that it has."""
    if not (folder / LIST).is_file():
        names = names | _find_named(folder)
    _write_list(folder, names)


def _write_list(folder: Path, names: set[str]) -> None:
    owned = read_owned(folder)
    if names - owned or not (folder / LIST).is_file():
        write_text(folder / LIST, "\n".join(sorted(names | owned)) + "\n", durable=True)


def is_name_of_run(name: str) -> bool:
    """Return whether a run gives one of its files this name, in any version."""
    return any(fnmatchcase(name, known) for known in _NAMES)


def may_write(config: TrainConfig, name: str) -> bool:
    """Return whether a new run of these settings may give one of its files this name.

    learning_rate.csv is in any case the run's, as its report reads it.
    """
    number = name.removeprefix("epoch_").removesuffix(".pt")
    if number.isdecimal() and int(number) and name == f"epoch_{int(number):04d}.pt":
        return config.run.save_every > 0 and int(number) % config.run.save_every == 0
    return name in FILES and (name != "profile.json" or config.launch.profile)


def find_owned(folder: Path) -> list[Path]:
    """Return the existing files in `folder` that runs have written."""
    names = read_owned(folder) | {path.name for path in folder.glob(_EVENTS)}
    return [path for path in (folder / name for name in sorted(names)) if path.is_file()]


def find_checkpoints(folder: Path) -> list[Path]:
    """Return the files that a new run would lose: checkpoints and rows of metrics.csv.

    Without one, the folder has no run, or one that was stopped before its first save.
    """
    return [
        path for path in find_owned(folder) if path.suffix == ".pt" or path.name == "metrics.csv"
    ]


def find_epochs(folder: Path) -> list[Path]:
    """Return the epoch_*.pt that a run keeps in `folder`, the latest last."""
    return [path for path in find_checkpoints(folder) if path.name.startswith("epoch_")]


def record_owned(folder: Path, names: Iterable[str]) -> None:
    """Write that `names` are files of the run in `folder`, before they are written.

    Raises:
        UserError: one of them is there already and the user's.
        OSError: the list can't be written.
    """
    names = set(names)
    check_free(folder, names)
    _write_list(folder, names)


def forget_missing(folder: Path) -> None:
    """Take names without a file off the list: a start that failed has written none, the user may.

    Raises:
        OSError: the list can't be written.
    """
    owned = read_owned(folder)
    found = {name for name in owned if (folder / name).exists()}
    if found != owned and (folder / LIST).is_file():
        write_text(folder / LIST, "\n".join(sorted(found)) + "\n", durable=True)


def check_free(folder: Path, names: Iterable[str]) -> None:
    """Raise a UserError if files in `folder` have one of `names` and are the user's."""
    foreign = sorted(folder / name for name in set(names) - read_owned(folder))
    foreign = [path for path in foreign if path.exists()]
    if foreign:
        what, it = join_some([*map(str, foreign)], _SHOWN), "it" if len(foreign) == 1 else "them"
        raise UserError(f"{what}: not of the run, which would replace {it}: rename {it}")


def delete_owned(folder: Path) -> None:
    """Delete the files that runs have written into `folder`, and no others."""
    _write_list(folder, read_owned(folder))  # of an earlier version: a kill here leaves a list
    for path in find_owned(folder):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # not empty: files of the user's
        (folder / "evaluation").rmdir()
    (folder / LIST).unlink(missing_ok=True)
