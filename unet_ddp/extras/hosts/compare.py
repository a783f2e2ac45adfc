"""Hosts that may share nothing: compared at the start, and the run is on that of rank 0."""

from __future__ import annotations

import hashlib
import socket
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import unet_ddp
from unet_ddp.config import TrainConfig
from unet_ddp.data.splits import Split
from unet_ddp.distributed.elastic import is_elastic
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, count_of
from unet_ddp.files import is_address, write_errors
from unet_ddp.runs.recovery import read_state
from unet_ddp.runs.same_data import measure_files
from unet_ddp.settings import Kind, as_flag, names_of, values_of

_LIBRARIES = ("torch", "numpy", "pillow", "albumentations")
_SHARE = "let all hosts share one, or use object storage (--checkpoints s3://BUCKET/RUN)"


def check_hosts(config: TrainConfig, launchers: Sequence[str], world: World) -> None:
    """Check that all ranks run one program with the same settings, and that rank 0 has its run.

    Paths may differ. `launchers` are the names of this world's torchruns.

    Raises:
        UserError: the first difference, the same on every rank; or see `check_folders`.
    """
    _compare(_describe(config), world, "start the same program with the same settings")
    if not _is_one(world):
        check_folders(config, launchers, world)


def check_data(split: Split, sources: Mapping[str, str], world: World) -> None:
    """Check that every host has the files of rank 0's split, by a fingerprint, and its sources.

    `sources` are the texts of what is the user's own, by name.

    Raises:
        UserError: the first difference, the same on every rank.
    """
    digests = {}
    for name, text in sources.items():
        digests[f"the source of {name}"] = _digest(text.encode())
    _compare(digests, world, "have the same file")
    if _is_one(world):
        return
    data = None
    if world.local_rank == 0:  # of its host; so is rank 0
        files = measure_files(split)
        digest = _digest(files.numpy().tobytes())
        count = int((files >= 0).sum())
        data = {"the data": f"{count} of {files.numel()} files ({digest})"}
    _compare(data, world, "have the same data")


def _is_one(world: World) -> bool:
    """Return whether all ranks are on one host; that all are local may only be assumed."""
    return world.size == world.local_size == len(world.peers) + 1


def _compare(values: Mapping[str, str] | None, world: World, advice: str) -> None:
    """Raise UserError for the first of `values` that is not rank 0's; None is not compared."""
    found = world.gather((socket.gethostname(), values))
    main_host, expected = found[0]
    assert expected is not None
    for host, others in found:
        if others is None:
            continue
        for name, value in expected.items():
            other = others.get(name)
            if other != value:
                raise UserError(
                    f"{name} is {other} on {host}, but {value} on {main_host} (rank 0): {advice} on "
                    "every host"
                )


def _describe(config: TrainConfig) -> dict[str, str]:
    settings = values_of(config)
    for name in names_of(type(config), Kind.DATA_PLACE, Kind.RUN_PLACE, Kind.OF_HOST):
        del settings[name]
    settings["resume"] = config.launch.resume is not None
    settings["load"] = config.run.load is not None
    files = sorted(Path(unet_ddp.__file__).parent.rglob("*.py"))
    source = b"".join(path.read_bytes() for path in files)
    facts = {"unet_ddp": f"{unet_ddp.__version__} ({_digest(source)})"}
    for name in _LIBRARIES:
        facts[name] = version(name)
    for name, value in settings.items():
        facts[as_flag(name)] = str(value)
    return facts


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


# -- the run's folder -----------------------------------------------------------------------------


def check_folders(config: TrainConfig, launchers: Sequence[str], world: World) -> None:
    """Check that rank 0's host has the run to continue: otherwise it might start a new one.

    A run that `launchers` restarted continues without --resume.

    Raises:
        UserError: another host alone has the newest state, or hosts come and go and share no folder.
    """
    if world.on_main(lambda: is_address(config.address)):
        return
    done, folder = (-1, 0), config.folder
    state = read_state(folder) if world.local_rank == 0 else None
    if state is not None:
        is_restart = not set(launchers).isdisjoint(state.launchers)
        if is_restart or config.launch.resume == "auto":
            done = state.epoch, state.step
    found = world.gather((done, socket.gethostname(), str(folder)))
    main_done, main_host, _ = found[0]
    newest, host, place = max(found, key=lambda each: each[0])  # the first of equal ones
    if newest > main_done:
        epoch, step = count_of(newest[0], "epoch"), count_of(newest[1], "step")
        raise UserError(
            f"{place}: the run after {epoch} and {step} is on {host}, not on {main_host} (rank 0), "
            f"which shares no folder with it: give it rank 0, or {_SHARE}"
        )
    if any(world.gather(is_elastic())):
        _check_shared(folder, [host for _, host, _ in found], world)


def _check_shared(folder: Path, hosts: Sequence[str], world: World) -> None:
    """Raise UserError if a host does not see what rank 0 writes: after a loss it would start a new run."""
    probe = folder / world.on_main(lambda: _make_probe(folder))
    found = world.gather(probe.is_dir())
    world.on_main(probe.rmdir)
    for host, is_found in zip(hosts, found, strict=True):
        if not is_found:
            raise UserError(
                f"{folder} on {host} is not that on {hosts[0]} (rank 0), but with --nnodes=MIN:MAX a "
                f"run outlives its hosts: {_SHARE}"
            )


def _make_probe(folder: Path) -> str:
    """Make a folder of a new name, which no host remembers as missing; return the name."""
    with write_errors(folder, "choose a writable folder with --checkpoints"):
        folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".shared-", dir=folder)).name
