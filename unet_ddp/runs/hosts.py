"""Hosts that may share nothing: compared at the start, and one of them has the newest checkpoint."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

import torch

import unet_ddp
from unet_ddp.config import DATA_PLACES, RUN_PLACES, TrainConfig
from unet_ddp.data.splits import Split
from unet_ddp.distributed.hosts import launcher_names
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.files import replacing, write_errors, write_text
from unet_ddp.runs.checkpoint import previous
from unet_ddp.storage import Url

_MAY_DIFFER = {"config", "nproc", "workers", "cache", "device", "timeout", "rescue_dir", "profile"}
_LIBRARIES = ("torch", "numpy", "pillow", "albumentations")
_BEGUN = ".begun"  # a file on each host with the names of the torchruns
COPIED = ("learning_rate.csv", "best.pt", "metrics.csv")
"""Files that a run needs on another machine, beside its last.pt."""
# last.pt says that the others are there; if it is corrupt, last.1.pt is used.
_MOVED = (*COPIED, "last.1.pt", "last.pt")


def compare_hosts(config: TrainConfig, world: World) -> None:
    """Check that all ranks run one program with the same settings; paths may differ.

    Raises:
        UserError: the first difference, the same on every rank.
    """
    if world.size == 1:
        return
    found = world.gather((socket.gethostname(), _describe(config)))
    main_host, expected = found[0]
    for host, values in found:
        for name, value in expected.items():
            if values.get(name) != value:
                raise UserError(
                    f"{name} is {values.get(name)} on {host}, but {value} on {main_host} (rank 0): start "
                    "the same program with the same settings on every host"
                )


def _describe(config: TrainConfig) -> dict[str, str]:
    places = DATA_PLACES | RUN_PLACES
    settings = {k: v for k, v in config.to_dict().items() if k not in places}
    settings |= {k: v for k, v in vars(config.launch).items() if k not in _MAY_DIFFER}
    settings["resume"] = config.launch.resume is not None
    flags = {f"--{name.replace('_', '-')}": str(value) for name, value in settings.items()}
    program = f"{unet_ddp.__version__} ({_digest_program()})"
    return {"unet_ddp": program, **{name: version(name) for name in _LIBRARIES}, **flags}


@cache
def _digest_program() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(unet_ddp.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def compare_data(split: Split, world: World) -> None:
    """Check that every host has the files of rank 0's split, of the same sizes.

    Raises:
        UserError: the first file that differs, the same on every rank.
    """
    hosts = world.gather(socket.gethostname())
    if len(set(hosts)) == 1 or isinstance(split.training[0].image, Url):  # one place for all hosts
        return
    pairs = [*split.training, *split.validation]
    files = [path for pair in pairs for path in (pair.image, pair.mask)]
    sizes = [_size(file) for file in files] if world.local_rank == 0 else None
    digest = sizes and hashlib.sha256(repr(sizes).encode()).hexdigest()
    if len(set(world.gather(digest)) - {None}) == 1:
        return
    found = world.gather(sizes)
    expected = found[0]
    assert expected is not None  # rank 0 is the first of its host
    for host, others in zip(hosts, found, strict=True):
        for file, size, other in zip(files, expected, others or expected, strict=True):
            if size != other:
                raise UserError(
                    f"{file}: {other} on {host}, but {size} on {hosts[0]} (rank 0): every host needs "
                    "the same data"
                )


def _size(file: Path) -> str:
    try:
        return f"{file.stat().st_size:,} bytes"
    except OSError as error:
        return error.strerror or "unreadable"


# -- the checkpoint -------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedState:
    """The state of a run that a host has."""

    run: str | None
    launchers: list[str]
    """Names of the torchruns that began or continued it: the run continues without a flag if one of
    them starts it again. Each host has one, and one that is left is enough. Their own count leaves
    out the restarts in which a host comes."""
    epoch: int
    step: int
    resume: object = None
    """The file that its last start resumed from."""


def fetch_run(config: TrainConfig, launchers: Sequence[str], world: World) -> dict[str, bytes]:
    """Return the files of the run to continue if another host has it newer than rank 0's host.

    A host that comes or goes can make one rank 0 that has no checkpoint, or an older one.

    `launchers` are those of this world; a run that they restarted continues without --resume.

    Raises:
        UserError: rank 0's host has another run in its folder, or no host has the checkpoints.
    """
    is_elsewhere = isinstance(config.place, Url) or config.launch.resume not in (None, "auto")
    is_begun = not is_elsewhere and _is_begun(config, launchers)
    found = world.gather((socket.gethostname(), is_elsewhere, is_begun))
    hosts, elsewhere, begun = zip(*found, strict=True)
    if any(elsewhere):
        return {}
    states = world.gather(read_state(config.folder) if world.local_rank == 0 else None)
    wanted = {
        (state.epoch, state.step, -rank): rank
        for rank, state in enumerate(states)
        if state and (config.launch.resume or not set(launchers).isdisjoint(state.launchers))
    }
    if not wanted and any(begun) and config.launch.resume is None:
        raise UserError(
            f"{config.folder}: the run that this torchrun began has no checkpoint on "
            f"{', '.join(sorted(set(hosts)))}: start it with the host that has, or a new one with --overwrite"
        )
    newest = wanted[max(wanted)] if wanted else 0
    mine, other = states[0], states[newest]
    if newest == 0 or other is None:
        return {}
    if mine is not None and (mine.run is None or mine.run != other.run):
        raise UserError(
            f"{config.folder} has different runs on {hosts[0]} (rank 0) and {hosts[newest]}, where it is "
            f"after {other.epoch} epochs and {other.step} steps: move one of them away, or name the run "
            "with --exp-name"
        )
    files = ((n, world.on_rank(newest, partial(_read, config.folder / n))) for n in _MOVED)
    return {name: data for name, data in files if data is not None and world.is_main}


def write_fetched(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files that `fetch_run` gave into the run's folder.

    Raises:
        UserError: it is not writable.
    """
    for name, data in files.items():
        path = folder / name
        with write_errors(path), replacing(path, durable=True) as temporary:
            temporary.write_bytes(data)


def mark_begun(config: TrainConfig, launchers: Sequence[str], world: World) -> None:
    """Leave a mark on each host of several: without the one that has the checkpoints it says so."""
    is_elsewhere = world.local_rank > 0 or isinstance(config.place, Url)
    if world.size > world.local_size and not is_elsewhere:
        with suppress(OSError):  # a host that can't write can't have the checkpoints either
            write_text(config.folder / _BEGUN, "\n".join(launchers))


def _is_begun(config: TrainConfig, launchers: Sequence[str]) -> bool:
    names = launcher_names()[:1] if config.launch.overwrite else launchers
    with suppress(OSError):
        return not set(names).isdisjoint((config.folder / _BEGUN).read_text().split("\n"))
    return False


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def read_state(folder: Path) -> SavedState | None:
    """Return what a host's last.pt says, without its tensors; None if there is none to be read."""
    for path in (folder / "last.pt", previous(folder / "last.pt")):
        with suppress(Exception):  # corrupt: whoever resumes it says so
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            position = content["position"]
            return SavedState(
                content.get("run"),
                [name for name in content.get("launchers") or [] if isinstance(name, str)],
                int(position["epoch"]),
                int(position["step"]),
                content.get("resume"),
            )
    return None
