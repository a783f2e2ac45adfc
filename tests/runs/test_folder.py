"""The run folder: locked, never overwritten silently, written while training continues."""

from __future__ import annotations

import copy
import errno
import math
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import yaml

from tests.operations import Operations
from tests.search.disk import Disk, Fault, Killed
from tests.tiny import PIXELS, make_data, make_network, make_state
from unet_ddp import files
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.checkpoints.run_files import EVALUATION_FILES, HEADS, set_aside, settle, withdraw
from unet_ddp.commands.train_parts import open_run
from unet_ddp.config import LaunchConfig, RunConfig, TrainConfig
from unet_ddp.data.labels import Labels
from unet_ddp.distributed.hosts import launcher_names
from unet_ddp.distributed.stop_signal import StopReason
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError
from unet_ddp.network.architecture import Architecture
from unet_ddp.runs import folder as folder_module
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.mirror import Mirror
from unet_ddp.runs.resume import StartPoint
from unet_ddp.training.state import TrainState

ABOUT = {
    "unet_ddp": "1.0",
    "architecture": Architecture("unet", 3, 2, None, 4).to_dict(),
    "labels": Labels((0, 255)).to_dict(),
    "preprocessing": PIXELS.to_dict(),
    "config": {},
    "names": "abc",
    "files": torch.zeros(2, 2),
    "crop_size": None,
    "images_per_step": 4,
}


def config_of(path: Path, **launch: Any) -> TrainConfig:
    return TrainConfig(run=RunConfig(checkpoints=str(path)), launch=LaunchConfig(**launch))


@contextmanager
def open_folder(
    path: Path, *, lines: list[str] | None = None, run: dict[str, Any] | None = None, **launch: Any
) -> Iterator[RunFolder]:
    """The folder of a run that has begun."""
    config = config_of(path, **launch)
    config = replace(config, run=replace(config.run, **(run or {})))
    log = [] if lines is None else lines
    with RunFolder(config, World(), log.append) as folder:
        resumed = folder.open(config)
        folder.claim(config, resumed, ABOUT)
        yield folder


SAVED = {
    **ABOUT, **make_state().state_dict(), "model": {}, "optimizer": {}, "run": "first", "launchers": [],
    "resume": "last.pt", "position": {"epoch": 1, "step": 2, "sums": [0.1, 0.2, 0.3], "skipped": [0, 0]},
}  # fmt: skip


def write(path: Path, **content: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    checkpoint.save(path, {**SAVED, **content})
    return path


def opened(path: Path, **launch: Any) -> StartPoint:
    config = config_of(path, **launch)
    with RunFolder(config, World(), [].append) as folder:
        return folder.open(config)


def refused(path: Path, **launch: Any) -> str:
    with pytest.raises(UserError) as error:
        opened(path, **launch)
    return str(error.value)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("position", 7), ("position.epoch", -1), ("position.step", "2"), ("position.step", None),
        ("position.sums", [0.0]), ("position.sums", "abc"), ("best", None), ("best.epoch", 0.5),
        ("best.score", float("nan")), ("best.score", 2.0), ("images_per_step", 0),
        ("images_per_step", True), ("images_per_step", 2**40), ("names", None), ("config", [1]),
        ("config", {3: 4}), ("optimizer", []), ("model", 1), ("model", {"x": 1}),
        ("ema_steps", -1), ("anneal", [4]), ("anneal", [4, 4]), ("scaler", {"scale": 1.0}), ("scaler", 5), ("threshold", "0.5"),
        ("last_rate", 0.0), ("sources", ["a.py"]), ("sources", {"a:B": 1}),
        ("labels.values", [0, 0]), ("preprocessing.scale", 0.0), ("architecture.width", 0),
    ],
)  # fmt: skip
def test_a_value_that_no_run_writes_is_not_resumed_from(
    tmp_path: Path, where: str, value: Any
) -> None:
    content = copy.deepcopy(SAVED)
    group, _, name = where.rpartition(".")
    (content[group] if group else content)[name] = value
    line = refused(write(tmp_path / "last.pt", **content).parent, resume="auto")
    assert line.startswith(f"{tmp_path / 'last.pt'}: {where.replace('.', ': ')}: "), line


@pytest.mark.parametrize(
    "name",
    [
        "last_rate", "loss", "numbers", "files", "run", "ema", "threshold", "launchers", "resume",
        "best.name", "position.skipped",
    ],
)  # fmt: skip
def test_a_checkpoint_without_a_key_that_each_run_writes_is_refused(
    tmp_path: Path, name: str
) -> None:
    content = copy.deepcopy(SAVED)
    group, _, key = name.rpartition(".")
    del (content[group] if group else content)[key]
    path = tmp_path / "last.pt"
    checkpoint.save(path, content)
    said = f"{path}: {name.replace('.', ': ')}: missing; the file is damaged, or written by another version"
    assert refused(tmp_path, resume="auto").startswith(said)


def test_a_phase_that_a_run_is_in_is_resumed(tmp_path: Path) -> None:
    content = opened(write(tmp_path / "last.pt", anneal=[4, 5]).parent, resume="auto").content
    assert content is not None and content["anneal"] == [4, 5]


class Recorder(Mirror):
    """Notes each moment, and which of the run's files the folder has then."""

    def __init__(self, path: Path) -> None:
        self.path, self.moments = path, list[tuple[str, set[str]]]()

    def note(self, moment: str) -> None:
        self.moments.append(
            (moment, {"last.pt", "config.yaml"} & {each.name for each in self.path.iterdir()})
        )

    def open(self, launchers: Sequence[str]) -> None:
        assert (self.path / ".lock").exists()
        self.note("open")

    def claim(self, resumed: StartPoint) -> None:
        self.note("claim of a new run" if resumed.is_new else "claim")

    def saved(self) -> None:
        self.note("saved")

    def log_failures(self, *, waits: bool) -> None:
        if waits:
            self.note("log failures")

    def finish(self) -> None:
        self.note("finish")

    def close(self) -> None:
        self.note("close")


def test_a_folder_calls_its_mirror_at_the_moments_of_a_run(tmp_path: Path) -> None:
    write(tmp_path / "last.pt")
    moments = {}
    for launch in ({"overwrite": True}, {"resume": "auto"}):
        mirror, config = Recorder(tmp_path), config_of(tmp_path, **launch)
        with RunFolder(config, World(), print, mirror) as folder:
            resumed = folder.open(config)
            folder.claim(config, resumed, ABOUT)
            folder.begin(make_data(), make_state(), resumed)
            folder.finish(make_state(), None)
        moments[resumed.is_new] = mirror.moments
    one, both = {"last.pt"}, {"last.pt", "config.yaml"}
    end = [
        (name, both)
        for name in ("saved", "log failures", "finish", "saved", "log failures", "close")
    ]
    assert moments[True] == [("open", one), ("claim of a new run", one), ("saved", one), *end]
    assert moments[False] == [("open", both), ("claim", both), *end]


def test_a_run_that_fails_copies_nothing_more_and_ends_its_mirror(tmp_path: Path) -> None:
    mirror, config = Recorder(tmp_path), config_of(tmp_path)
    with pytest.raises(ZeroDivisionError), RunFolder(config, World(), print, mirror) as folder:
        folder.claim(config, folder.open(config), ABOUT)
        raise ZeroDivisionError
    assert [name for name, _ in mirror.moments] == [
        "open",
        "claim of a new run",
        "log failures",
        "close",
    ]


# -- opening ------------------------------------------------------------------------------------


def test_a_new_folder_starts_a_new_run(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "one"
    resumed = opened(path)
    assert resumed == StartPoint() and resumed.notes == []
    assert not path.exists()  # nor any trace of it, as it was not claimed
    opened(tmp_path)
    assert files_in(tmp_path) == {".lock"}  # the user's stays


@pytest.mark.parametrize("name", ["last.pt", "last.1.pt", "best.pt", "epoch_0005.pt", "metrics.csv"])  # fmt: skip
def test_a_folder_with_a_run_is_not_overwritten_silently(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(HEADS[PATTERN.get(name, name)])
    line = refused(tmp_path)
    assert line.startswith(f"{tmp_path} contains a run ({name}): ") and "--overwrite" in line
    assert ("continue it with --resume" in line) == name.startswith("last")
    assert opened(tmp_path, overwrite=True).content is None
    assert (tmp_path / name).exists()  # until the new run is known to work


def test_a_run_that_was_killed_before_its_first_save_begins_again(tmp_path: Path) -> None:
    """Issue: neither the same command nor --resume went on, and each named the other."""
    with open_folder(tmp_path):
        pass
    assert files_in(tmp_path) == {".lock"}
    assert "start a new run without --resume" in refused(tmp_path, resume="auto")
    with open_folder(tmp_path) as folder:
        folder.save(make_state())
    assert opened(tmp_path, resume="auto").content is not None


MINE = [
    name.replace("[0-9]*", "0005")
    for name in HEADS
    if "/" not in name and not name.startswith(("events", "last.1"))
]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("name", "text"), [*((name, "mine") for name in MINE), ("config.yaml", "")]
)
def test_a_file_of_the_users_is_not_replaced(
    tmp_path: Path, name: str, text: str, overwrite: bool
) -> None:
    """Issue: config.yaml, the recipe of the very run, was deleted by its start."""
    (tmp_path / name).write_text(text)
    run = {"save_every": 5 * name.startswith("epoch_")}
    with (
        pytest.raises(UserError) as error,
        open_folder(tmp_path, run=run, overwrite=overwrite, profile=name == "profile.json"),
    ):
        pass
    line = str(error.value)
    assert line.startswith(f"{tmp_path / name}: not of the run, which would replace it: rename it")
    (tmp_path / name).rename(tmp_path / "mine")
    with open_folder(tmp_path, overwrite=overwrite):
        assert (tmp_path / "mine").read_text() == text


@pytest.mark.parametrize(
    "name", ["run.json", "learning_rate.csv", "samples.png", "profile.json", "report.html"]
)
def test_nor_by_a_resumed_run_that_has_not_written_it_yet(tmp_path: Path, name: str) -> None:
    with open_folder(tmp_path) as folder:
        folder.save(make_state())
    (tmp_path / name).write_text("mine")
    line = refused(tmp_path, resume="auto", profile=name == "profile.json")
    assert line.startswith(f"{tmp_path / name}: not of the run, which would replace it: rename it")


@pytest.mark.parametrize(
    "name", ["epoch_0003.pt", "epoch_0000.pt", "epoch_2.pt", "epoch_0002 (copy).pt"]
)
def test_only_names_that_the_run_may_write_are_refused(tmp_path: Path, name: str) -> None:
    """Issue: a user's epoch_0005.pt stopped a run without --save-every, or with one of 2."""
    (tmp_path / name).write_text("mine")
    with open_folder(tmp_path, run={"save_every": 2}) as folder:
        train_on(make_state(make_network().float()), folder, 0.1, 0.2, 0.3)
    assert (tmp_path / "epoch_0002.pt").exists() and (tmp_path / name).read_text() == "mine"


OF_OTHERS = (
    "notes.txt", "monday.tmp", ".last.pt.1.x.tmp", "events.out.tfevents.1.lab", "plots.tmp/a.png",
    "best (copy).pt", "wandb/run/x", "evaluation/scores.json", "epoch_last.pt", "last.pt.bak",
    "epoch_0005.pt", "epoch_0005 (copy).pt", "profile.json",
)  # fmt: skip


@pytest.mark.parametrize("overwrite", [False, True])
def test_no_start_touches_files_of_others(tmp_path: Path, overwrite: bool) -> None:
    """Issue: *.tmp, TensorBoard's files of other programs, and evaluation/ were deleted."""
    fill(tmp_path, set(OF_OTHERS))
    for _ in range(2):
        with open_folder(tmp_path, overwrite=overwrite) as folder:
            folder.save(make_state())
        for resume in ("auto", None):
            with suppress(UserError):
                opened(tmp_path, resume=resume)
        overwrite = True
    assert {name for name in OF_OTHERS if (tmp_path / name).exists()} == set(OF_OTHERS)


def test_a_run_comes_back_if_the_one_that_replaces_it_was_not_saved(tmp_path: Path) -> None:
    """At each of the moves, there and back, a kill leaves what the next start completes."""
    fill(tmp_path, RUN_FILES, by_run=True)
    (tmp_path / "report.html").write_text("mine")  # whoever wrote it, no start replaces it
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    moves, move = 2 * len(RUN_FILES) - 2, Path.replace
    for last in range(moves):
        done = 0

        def stop(self: Path, target: Path, last: int = last) -> Path:
            nonlocal done
            if done == last:
                raise KeyboardInterrupt
            done += 1
            return move(self, target)

        with mock.patch.object(Path, "replace", stop), suppress(KeyboardInterrupt):
            if last < moves // 2:
                set_aside(tmp_path)
            else:
                set_aside(tmp_path)
                settle(tmp_path)
        settle(tmp_path)
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    set_aside(tmp_path)
    (tmp_path / "last.pt").write_text("of the new run")
    settle(tmp_path)
    assert files_in(tmp_path) == {"last.pt", "report.html"}


@pytest.mark.parametrize("goes_back", [False, True])
def test_a_kill_while_a_start_is_taken_back_leaves_one_run_whole(
    tmp_path: Path, goes_back: bool
) -> None:
    """Issue: the run before came back with the settings of the start that had failed."""
    place = tmp_path / "run"
    saved_run(place, 0.1)
    names = {"metrics.csv", "config.yaml", "run.json", "epoch_0001.pt", "epoch_0002.pt"}
    fill(place, {*names, "evaluation/scores.json"}, by_run=True)
    stays = names - {"epoch_0002.pt"} if goes_back else set()
    written = {"last.pt", "last.1.pt", "config.yaml", "run.json", *stays}

    def read() -> dict[str, bytes]:
        paths = (path for path in place.rglob("*") if path.is_file() and path.name != ".lock")
        return {str(path.relative_to(place)): path.read_bytes() for path in paths}

    shutil.copytree(place, tmp_path / "before")
    before, new, ends = read(), dict[str, bytes](), list[bool]()
    while len(ends) < 100:
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "before", place)
        set_aside(place, {"last.pt", "last.1.pt", *names} if goes_back else None, stays=stays)
        for name in written:
            head = HEADS[PATTERN.get(name, name)].decode()
            files.write_text(place / name, f"{head} of the new run")  # as a run writes: a new file
        new = {name: text for name, text in read().items() if not name.startswith(".")}
        with Disk(place, Fault("kill", len(ends))).watching() as disk, suppress(Killed):
            withdraw(place, written)
        settle(place)
        assert read() in (before, new)
        ends.append(read() == before)
        if not disk.is_dead:
            break
    assert ends == sorted(ends) and ends[-1] and 5 < ends.count(True) < 100


@pytest.mark.parametrize("puts_back", [Path.rename, shutil.copy])
def test_a_run_that_was_put_back_by_hand_loses_nothing(tmp_path: Path, puts_back: Any) -> None:
    """Issue: --overwrite was killed, last.pt was moved back, and the next start deleted the rest."""
    saved_run(tmp_path, 0.1)
    fill(tmp_path, {"metrics.csv", "evaluation/scores.json"}, by_run=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    set_aside(tmp_path)
    puts_back(tmp_path / ".replaced" / "last.pt", tmp_path / "last.pt")
    (tmp_path / "metrics.csv").write_text("epoch,step,\nmine")
    settle(tmp_path)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    rows = tmp_path / "metrics.csv"
    kept = {rows: b"epoch,step,\nmine", tmp_path / "metrics.csv.replaced": before[rows]}
    assert after == {**before, **kept}
    assert opened(tmp_path, resume="auto").content is not None


def test_a_new_run_that_can_not_be_saved_leaves_the_one_before(
    tmp_path: Path, disk: FullDisk
) -> None:
    saved_run(tmp_path, 0.1)
    disk.full = [tmp_path]
    with (
        pytest.raises(
            UserError, match=r"last.pt: can't be written .*; free some space, or"
        ) as error,
        open_folder(tmp_path, overwrite=True) as folder,
    ):
        folder.begin(make_data(), make_state(), StartPoint())
    assert "the old file" not in str(error.value)
    assert first_weight(tmp_path / "last.pt") == first_weight(tmp_path / "best.pt") == 1.0
    assert opened(tmp_path, resume="auto").content is not None


def test_links_of_a_run_come_back_too(tmp_path: Path) -> None:
    """Issue: a relative link leads nowhere from where it is set aside, and was deleted there."""
    saved_run(tmp_path / "run", 0.1)
    (tmp_path / "disk").mkdir()
    (tmp_path / "run" / "last.pt").rename(tmp_path / "disk" / "last.pt")
    (tmp_path / "run" / "last.pt").symlink_to(Path("..", "disk", "last.pt"))
    set_aside(tmp_path / "run")
    with pytest.raises(UserError, match="it was set aside: train"):
        checkpoint.load(tmp_path / "run" / "best.pt")
    settle(tmp_path / "run")
    assert first_weight(tmp_path / "run" / "last.pt") == 1.0


def test_a_run_that_can_not_be_set_aside_stays(tmp_path: Path) -> None:
    """Issue: what was moved before the error was not to be seen until the next start."""
    saved_run(tmp_path, 0.1)
    before, move = files_in(tmp_path), Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if target == tmp_path / ".replaced" / "config.yaml":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return move(self, target)

    (tmp_path / "config.yaml").write_bytes(HEADS["config.yaml"])
    with (
        mock.patch.object(Path, "replace", refuse),
        pytest.raises(UserError, match="cross-device"),
        open_folder(tmp_path, overwrite=True),
    ):
        pass
    assert files_in(tmp_path) == before | {"config.yaml"}


def test_a_start_without_overwrite_sets_nothing_aside(tmp_path: Path) -> None:
    """Issue: a trace of the user's own, which looks as ours does, was deleted."""
    (tmp_path / "profile.json").write_text('{"schemaVersion": 1}')
    with open_folder(tmp_path) as folder:
        folder.begin(make_data(), make_state(), StartPoint())
    assert (tmp_path / "profile.json").exists()


def test_a_best_of_the_users_is_not_deleted(tmp_path: Path) -> None:
    """Issue: a resume took it for the run's from then on, and --overwrite deleted it."""
    with open_folder(tmp_path) as folder:
        folder.begin(make_data(), make_state(make_network().float()), StartPoint())
    (tmp_path / "best.pt").write_text("mine")
    with resumed_run(tmp_path, resume="auto"):
        pass
    assert "best.pt: not of the run" in refused(tmp_path, overwrite=True)
    assert (tmp_path / "best.pt").read_text() == "mine"


def test_a_run_is_resumed_from_its_last_checkpoint(tmp_path: Path) -> None:
    path = write(tmp_path / "last.pt", value=7)
    resumed = opened(tmp_path, resume="auto")
    assert resumed.content is not None and resumed.content["value"] == 7
    assert resumed.notes == [f"resuming {path}: 1 epoch and 2 steps are done"]
    write(tmp_path / "epoch_0001.pt")
    other = opened(tmp_path, resume=str(path))
    assert other.content is not None and other.content["value"] == 7


def test_a_corrupt_checkpoint_falls_back_with_a_warning(tmp_path: Path) -> None:
    write(tmp_path / "last.1.pt", value=6)
    for content in (b"", None):
        if content is None:
            (tmp_path / "last.pt").unlink()
        else:
            (tmp_path / "last.pt").write_bytes(content)
        resumed = opened(tmp_path, resume="auto")
        assert resumed.content is not None and resumed.content["value"] == 6
        assert resumed.notes[0].startswith("warning: ") and "using" in resumed.notes[0]
        assert resumed.notes[1].startswith(f"resuming {tmp_path / 'last.1.pt'}: ")


def test_what_can_not_be_resumed_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, resume="auto").startswith(
        f"{tmp_path / 'last.pt'}: no checkpoint to resume from; start a new run without --resume"
    )
    nowhere = tmp_path / "nope"
    for resume in (str(nowhere / "last.pt"), "auto"):
        assert "no checkpoint to resume" in refused(nowhere, resume=resume)
        assert not nowhere.exists()
    best = tmp_path / "best.pt"
    checkpoint.save(best, {"model": {}})
    assert "contains weights only" in refused(tmp_path, resume=str(best))


ME = {"TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("saved", "environment", "resumes"),
    [
        (["lost", "me"], ME, True),  # one of the hosts is left
        (["lost"], ME, False),
        (None, ME, False),  # damaged
        ("me", ME, False),
        (["me"], {}, False),  # no torchrun
    ],
)
def test_a_restart_of_torchrun_resumes_its_own_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    saved: Any,
    environment: dict[str, str],
    resumes: bool,
) -> None:
    """Whatever torchrun's own count says: that a host comes is no restart to it."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    me = "".join(launcher_names())
    names = [name.replace("me", me) for name in saved] if isinstance(saved, list) else saved
    write(tmp_path / "last.pt", launchers=names)
    if resumes:
        assert opened(tmp_path).content is not None
    else:
        assert "contains a run" in refused(tmp_path)
    (tmp_path / "last.pt").write_bytes(b"corrupt")
    assert "last.pt: not of the run, which would replace it" in refused(tmp_path)
    (tmp_path / "last.pt").unlink()
    assert opened(tmp_path).content is None


def test_overwrite_and_the_rdzv_id_of_the_run_is_refused_but_to_its_own_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is queued again would lose its run; a worker that is restarted continues."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "42")
    write(tmp_path / "last.pt", launchers=["host 7 7", "42"])
    assert opened(tmp_path).content is not None
    line = refused(tmp_path, overwrite=True)
    assert "its run began with this --rdzv-id, which continues it: leave --overwrite out" in line
    write(tmp_path / "last.pt", launchers=launcher_names())
    assert opened(tmp_path, overwrite=True).content is not None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "43")
    monkeypatch.setattr(os, "getppid", os.getpid)  # another torchrun
    assert opened(tmp_path, overwrite=True).content is None


def test_given_weights_start_a_new_run(tmp_path: Path) -> None:
    torch.save({"a.weight": torch.ones(1)}, tmp_path / "x.pth")
    config = config_of(tmp_path / "run")
    config = replace(config, run=replace(config.run, load=str(tmp_path / "x.pth")))
    with RunFolder(config, World(), [].append) as folder:
        resumed = open_run(folder, config)
    assert resumed.content is None and resumed.weights is not None
    assert resumed.weights.model.state.keys() == {"a.weight"}
    encoder = replace(config.network, encoder_weights=str(tmp_path / "x.pth"))
    config = replace(config, run=replace(config.run, load=None), network=encoder)
    with RunFolder(config, World(), [].append) as folder:
        weights = open_run(folder, config).weights
        assert weights is not None and weights.model.state.keys() == {"a.weight"}


@pytest.mark.parametrize(
    ("weights", "is_file"),
    [(None, False), ("imagenet", False), ("imagenet+5k", False), ("a.pth", True), ("b/c.safetensors", True)],
)  # fmt: skip
def test_encoder_weights_are_a_name_or_a_file(
    tmp_path: Path, weights: str | None, is_file: bool
) -> None:
    config = config_of(tmp_path / "run")
    config = replace(config, network=replace(config.network, encoder_weights=weights))
    with RunFolder(config, World(), [].append) as folder:
        if is_file:
            with pytest.raises(UserError, match="checkpoint not found"):
                open_run(folder, config)
        else:
            assert open_run(folder, config).weights is None


@pytest.mark.filterwarnings("ignore:.*fork")
def test_two_runs_can_not_share_a_folder(tmp_path: Path) -> None:
    """Record locks belong to a process: the second run is a child."""

    def open_in_child() -> str:
        inlet, outlet = os.pipe()
        child = os.fork()
        if child == 0:
            line = "opened"
            try:
                opened(tmp_path)
            except UserError as error:
                line = str(error)
            finally:
                os.write(outlet, line.encode())
                os._exit(0)
        os.waitpid(child, 0)
        return os.read(inlet, 1000).decode()

    with RunFolder(config_of(tmp_path), World(), [].append) as folder:
        folder.open(config_of(tmp_path))
        line = open_in_child()
    assert line.startswith(f"{tmp_path}: another run uses it (process {os.getpid()}); wait for its")
    assert open_in_child() == "opened"


def test_a_folder_that_can_not_be_made_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    """Of a name whose folder is none, another name is no way out."""
    assert refused(tmp_path / "file" / "run").endswith(
        "Not a directory; choose a writable folder with --checkpoints"
    )
    assert refused(tmp_path / "file").endswith("--checkpoints or --exp-name")


def test_temporary_files_of_a_kill_are_removed(tmp_path: Path) -> None:
    dead = 2**22 + 1  # above the largest process id
    kept = {f".last.pt.{os.getpid()}.abc.tmp", f".notes.txt.{dead}.abc.tmp"}
    for name in (f".last.pt.{dead}.abc.tmp", f".last.1.pt.{dead}.abc.tmp", *kept):
        (tmp_path / name).touch()
    opened(tmp_path)
    assert {found.name for found in tmp_path.iterdir()} == {".lock", *kept}


# -- claiming -----------------------------------------------------------------------------------

OTHERS = {"notes.txt", "evaluation/notes.txt", "evaluation/old/scores.json", "epoch_1.txt"}
RUN_FILES = {
    "last.pt", "last.1.pt", "best.pt", "epoch_0005.pt", "metrics.csv", "samples.png",
    "profile.json", "report.html", "events.out.tfevents.1.host.unet_ddp",
    *(f"evaluation/{name}" for name in EVALUATION_FILES),
}  # fmt: skip


PATTERN = {
    "epoch_0001.pt": "epoch_[0-9]*.pt",
    "epoch_0002.pt": "epoch_[0-9]*.pt",
    "epoch_0005.pt": "epoch_[0-9]*.pt",
    "events.out.tfevents.1.host.unet_ddp": "events.out.tfevents.*.unet_ddp",
}


def fill(folder: Path, names: set[str], *, by_run: bool = False) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        head = HEADS.get(PATTERN.get(name, name), b"") if by_run else b""
        (folder / name).write_bytes(head + b"of before")


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("others", [set(), OTHERS])
def test_a_new_run_deletes_the_files_of_a_run_and_no_others(
    tmp_path: Path, others: set[str]
) -> None:
    fill(tmp_path, others)
    fill(tmp_path, RUN_FILES, by_run=True)
    with open_folder(tmp_path, overwrite=True) as folder:
        assert files_in(tmp_path) == {".lock", *others, *(f".replaced/{n}" for n in RUN_FILES)}
        assert (tmp_path / "evaluation").exists() == bool(others)
        state, own = make_state(), {".lock", "last.pt", "config.yaml", "split.csv"} | others
        folder.begin(make_data(), state, StartPoint())
        assert files_in(tmp_path) == {*own, *(f".replaced/{n}" for n in RUN_FILES)}
        state.step = 1  # no mistake of the user's can bring the run before back from here on
        folder.save(state)
        folder.wait()
        assert files_in(tmp_path) == {*own, "last.1.pt"}


def test_a_resumed_run_deletes_nothing_and_its_settings_are_written(tmp_path: Path) -> None:
    fill(tmp_path, RUN_FILES, by_run=True)
    config = replace(config_of(tmp_path), optimization=replace(TrainConfig().optimization, seed=8))
    resumed = StartPoint(
        {"best": {"score": -math.inf, "epoch": 0}, "run": "first"}, tmp_path / "last.pt"
    )
    with RunFolder(config, World(), [].append) as folder:
        folder.claim(config, resumed, ABOUT)
        folder.begin(make_data("ab", "c"), make_state(), resumed)
    assert files_in(tmp_path) == RUN_FILES | {"config.yaml", "split.csv"}
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == config.to_dict()
    lines = (tmp_path / "split.csv").read_text().splitlines()
    assert [line.rpartition(",")[2] for line in lines[1:]] == ['"training"'] * 2 + ['"validation"']


# -- saving -------------------------------------------------------------------------------------


def first_weight(path: Path) -> float:
    return float(checkpoint.load(path)["model"]["0.weight"].flatten()[0])


def set_weights(state: Any, value: float) -> None:
    with torch.no_grad():
        state.network[0].weight.fill_(value)


def test_what_is_written_is_the_state_when_save_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training continues meanwhile; the next save waits for it, and so does the end."""
    gate, written, save = threading.Event(), [], checkpoint.save

    def slowly(path: Path, content: dict[str, Any], **how: bool) -> None:
        assert gate.wait(30)
        written.append((path.name, float(content["model"]["0.weight"].flatten()[0])))
        save(path, content, **how)

    monkeypatch.setattr(checkpoint, "save", slowly)
    state = make_state(make_network().float())
    with open_folder(tmp_path) as folder:
        set_weights(state, 1.0)
        folder.save(state)
        set_weights(state, 2.0)
        assert written == []
        gate.set()
        folder.save(state)
        assert written[0] == ("last.pt", 1.0)
        set_weights(state, 3.0)
    assert written == [("last.pt", 1.0), ("last.pt", 2.0)]
    assert first_weight(tmp_path / "last.pt") == 2.0
    assert first_weight(tmp_path / "last.1.pt") == 1.0


def test_the_files_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """last.pt is the first to be written: a kill after it leaves the others due, in it."""
    order, save = [], checkpoint.save

    def noted(path: Path, content: dict[str, Any], *, keep_previous: bool) -> None:
        order.append((path.name, keep_previous))
        save(path, content, keep_previous=keep_previous)

    monkeypatch.setattr(checkpoint, "save", noted)
    state = make_state(ema=0.5)
    state.threshold, state.best, state.best_epoch = 0.3, 0.8, 1
    with torch.no_grad():
        state.validation_network[0].weight.fill_(9.0)
    with open_folder(tmp_path, run={"save_every": 2}) as folder:
        for epoch, step, is_best in ((1, 0, True), (2, 0, False), (2, 1, False), (4, 0, True)):
            order.clear()
            state.epoch, state.step = epoch, step
            folder.save(state, is_best=is_best)
            folder.wait()
            best, every = [("best.pt", False)] * is_best, []
            if (epoch, step) in ((2, 0), (4, 0)):
                every = [(f"epoch_000{epoch}.pt", False)]
            assert order == [("last.pt", True), *best, *every]
    copied = []
    for is_best in (False, True):  # best.pt shares its weights with last.pt
        with open_folder(tmp_path / f"copied {is_best}") as folder, Operations() as operations:
            folder.save(state, is_best=is_best)
        copied.append(len(operations.of(torch.ops.aten._to_copy.default)))
    assert copied[0] == copied[1] > 0
    best_content, last = (checkpoint.load(tmp_path / name) for name in ("best.pt", "last.pt"))
    kept = ("unet_ddp", "architecture", "labels", "preprocessing", "config", "names")
    assert best_content.keys() == {*kept, "format", "model", "best", "threshold"}
    assert first_weight(tmp_path / "best.pt") == 9.0  # the average's
    assert best_content["best"] == last["best"] and last["best"]["score"] == 0.8
    assert best_content["threshold"] == 0.3
    assert last.keys() == {*ABOUT, *state.state_dict(), "format", "run", "launchers", "resume"}
    assert last["images_per_step"] == 4
    epoch = checkpoint.load(tmp_path / "epoch_0004.pt")
    assert epoch.keys() == last.keys() and epoch["position"]["epoch"] == 4


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with RunFolder(config, World(1, 2), [].append) as folder:
        folder.save(make_state(), is_best=True)
        folder.wait()
    assert list(tmp_path.iterdir()) == []


def break_network(state: Any) -> None:
    set_weights(state, float("nan"))


def test_weights_that_are_not_finite_end_the_run_and_are_not_written(tmp_path: Path) -> None:
    for ema in (0.0, 0.5):
        state = make_state(ema=ema)
        with open_folder(tmp_path, overwrite=True) as folder:
            folder.save(state)
            with torch.no_grad():
                state.validation_network[0].weight[0, 0, 0, 0] = float("inf")
            folder.save(state, is_best=True)
            part = "ema" if ema else "model"
            with pytest.raises(
                RunError, match=rf"last.pt: not written, as {part}.0.weight contains nan"
            ):
                folder.wait()
            folder.save(state)
            with pytest.raises(
                RunError, match=rf"last.pt: not written, as {part}.0.weight contains"
            ):
                folder.save(state)  # waits for the one before
        assert first_weight(tmp_path / "last.pt") < 1
        assert not (tmp_path / "best.pt").exists()


def test_an_error_of_the_last_save_is_logged_when_another_one_ends_the_run(tmp_path: Path) -> None:
    lines: list[str] = []
    state = make_state()
    break_network(state)
    with pytest.raises(KeyboardInterrupt), open_folder(tmp_path, lines=lines) as folder:
        folder.save(state)
        raise KeyboardInterrupt
    assert len(lines) == 1 and "not written, as model.0.weight contains nan" in lines[0]
    assert opened(tmp_path, overwrite=True).content is None  # the lock is free


class FullDisk:
    """Lets saves below some folders fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full: list[Path] = []
        self.save = checkpoint.save
        self.error: Exception = OSError(errno.ENOSPC, "No space\nleft " + "x" * 200)
        monkeypatch.setattr(checkpoint, "save", self)

    def __call__(self, path: Path, content: dict[str, Any], **how: bool) -> None:
        if path.parent in self.full:
            raise self.error
        self.save(path, content, **how)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


def test_a_full_disk_is_a_warning_and_the_next_save_tries_again(
    tmp_path: Path, disk: FullDisk
) -> None:
    lines: list[str] = []
    state = make_state()
    with open_folder(tmp_path, lines=lines) as folder:
        disk.full = [tmp_path]
        folder.save(state)
        folder.wait()
        folder.wait()  # nothing more to say
        disk.error = RuntimeError("iostream error")
        folder.save(state)
        folder.wait()
        disk.full = []
        folder.save(state)
        folder.wait()
        folder.finish(state, None)
    assert len(lines) == 2
    assert lines[0].startswith(f"warning: {tmp_path / 'last.pt'}: can't be written ([Errno 28] No")
    assert "\n" not in lines[0] and len(lines[0]) < 300 + len(str(tmp_path))
    assert lines[0].endswith("; training continues, and the next save tries again")
    assert "iostream error" in lines[1]
    assert (tmp_path / "last.pt").exists()


def test_the_end_writes_again_what_the_last_save_could_not(tmp_path: Path, disk: FullDisk) -> None:
    state = make_state()
    with open_folder(tmp_path) as folder:
        disk.full = [tmp_path]
        state.epoch, state.best_epoch = 3, 2
        folder.save(state, is_best=True)
        folder.wait()
        disk.full = []
        folder.finish(state, None)
    assert {"last.pt", "best.pt"} <= {path.name for path in tmp_path.iterdir()}
    for epoch, step in ((3, 1), (4, 0)):  # the best is of another epoch
        (tmp_path / "best.pt").unlink(missing_ok=True)
        with open_folder(tmp_path, overwrite=True) as folder:
            disk.full = [tmp_path]
            state.epoch, state.step = epoch, step
            folder.save(state)
            folder.wait()
            disk.full = []
            folder.finish(state, None)
        assert not (tmp_path / "best.pt").exists()


def test_a_disk_that_is_full_for_a_while_gets_the_last_state_first(
    tmp_path: Path, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archives of the epochs before would take its room, and a kill then loses all steps since."""
    order, save = [], disk.save
    disk.save = lambda path, content, **how: (order.append(path.name), save(path, content, **how))
    state, lines = make_state(), list[str]()
    with open_folder(tmp_path, lines=lines, run={"save_every": 1}) as folder:
        disk.full = [tmp_path]
        for epoch in range(1, 6):
            state.epoch = epoch
            folder.save(state, is_best=epoch == 3)
            folder.wait()
        assert order == []
        disk.full = []
        folder.save(state)
        folder.wait()
    archives = [f"epoch_000{epoch}.pt" for epoch in (3, 4, 5)]
    assert order == ["last.pt", "best.pt", *archives]
    given_up = [line for line in lines if "given up" in line]
    assert [line.split()[1] for line in given_up] == ["epoch_0001.pt:", "epoch_0002.pt:"]


@pytest.mark.parametrize("room", [0, 3])
def test_an_archive_leaves_room_for_the_next_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    state, lines = make_state(), list[str]()
    with open_folder(tmp_path, lines=lines, run={"save_every": 1}) as folder:
        folder.save(state)
        folder.wait()
        free = room * (tmp_path / "last.pt").stat().st_size
        usage = shutil.disk_usage(tmp_path)._replace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        state.epoch = 1
        folder.save(state)
        folder.wait()
        assert checkpoint.load(tmp_path / "last.pt")["position"]["epoch"] == 1
        assert (tmp_path / "epoch_0001.pt").exists() == (room > 0)
        assert ("the next last.pt needs it" in "".join(lines)) == (room == 0)
        folder.finish(state, None)  # no next one comes
        assert (tmp_path / "epoch_0001.pt").exists()


@pytest.mark.parametrize(
    ("fault", "is_dropped"),
    [("full", True), ("other error", False), ("corrupt", False), ("little room", False)],
)
def test_a_full_disk_costs_the_second_copy_before_the_last_steps(
    tmp_path: Path, disk: FullDisk, monkeypatch: pytest.MonkeyPatch, fault: str, is_dropped: bool
) -> None:
    """Only if last.pt is whole, the disk is what is full, and the room of last.1.pt suffices."""
    state, lines = make_state(), list[str]()
    with open_folder(tmp_path) as folder:
        for epoch in (1, 2):
            state.epoch = epoch
            folder.save(state)
            folder.wait()
    last, previous = tmp_path / "last.pt", tmp_path / "last.1.pt"
    if fault == "corrupt":
        data = bytearray(last.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 99] = bytes(99)
        last.write_bytes(data)
    if fault == "little room":
        previous.write_bytes(previous.read_bytes()[:-99])
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    save = disk.save

    def save_if_there_is_room(path: Path, content: dict[str, Any], **how: bool) -> None:
        if previous.exists():
            raise OSError(errno.EISDIR if fault == "other error" else errno.ENOSPC, "No")
        save(path, content, **how)

    disk.save = save_if_there_is_room
    with open_folder(tmp_path, lines=lines, resume="auto") as folder:
        state.epoch = 3
        folder.save(state)
        folder.wait()
        assert previous.exists() != is_dropped
        assert len(lines) == (not is_dropped)
        disk.full, disk.save = [], save


def test_a_ctrl_c_while_a_save_is_awaited_starts_no_second_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread still takes files out of what is due: two writers met in a KeyError."""
    gate, begun, save = threading.Event(), threading.Event(), checkpoint.save
    writers: list[str] = []

    def slowly(path: Path, content: dict[str, Any], **how: bool) -> None:
        writers.append(threading.current_thread().name)
        begun.set()
        assert gate.wait(30)
        save(path, content, **how)

    def interrupt(*_: object) -> None:
        begun.wait(30)
        monkeypatch.undo()
        monkeypatch.setattr(checkpoint, "save", slowly)
        threading.Timer(0.1, gate.set).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save", slowly)
    with pytest.raises(KeyboardInterrupt), open_folder(tmp_path) as folder:
        folder.save(make_state(), is_best=True)
        monkeypatch.setattr(Future, "result", interrupt)
        folder.wait()
    assert len(writers) == 2 and len({*writers}) == 1  # last.pt and best.pt, by the thread
    assert {"last.pt", "best.pt"} <= {path.name for path in tmp_path.iterdir()}


def test_an_address_rescues_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--rescue-dir s3://b/x: is an address; use"):
        open_folder(tmp_path, rescue_dir="s3://b/x").__enter__()


@pytest.mark.parametrize("fault", ["none", "removed", "full", "all full"])
def test_the_end_rescues_what_can_not_be_written_here_or_in_the_temporary_folder(
    tmp_path: Path, disk: FullDisk, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    rescue, run = tmp_path / "rescue", tmp_path / "run"
    places = {str(rescue): rescue / "a", None: tmp_path / "temporary"}

    def make(*, prefix: str, dir: str | None) -> str:
        places[dir].mkdir()
        return str(places[dir])

    monkeypatch.setattr(folder_module.tempfile, "mkdtemp", make)
    state = make_state()
    state.epoch = 2
    with open_folder(run, rescue_dir=str(rescue), run={"save_every": 1}) as folder:
        disk.full = {"none": [run], "removed": [run], "full": [run, rescue / "a"]}.get(
            fault, [run, rescue / "a", places[None]]
        )
        if fault == "removed":
            rescue.rmdir()
        folder.save(state)
        folder.wait()
        with pytest.raises(RunError, match=r"^the run has ended, but .*can't be written") as error:
            folder.finish(state, None)
    assert not (run / "last.pt").exists()
    if fault == "all full":
        assert str(error.value).endswith("; no other folder is writable either")
    else:
        place = places[str(rescue) if fault == "none" else None]
        assert str(error.value).endswith(f"; its files are in {place} (last.pt, epoch_0002.pt)")
        assert {path.name for path in place.iterdir()} == {"last.pt", "epoch_0002.pt"}


def test_a_rescue_folder_is_made_and_tried_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_folder(tmp_path / "run", rescue_dir=str(tmp_path / "new" / "rescue")):
        assert (tmp_path / "new" / "rescue").is_dir()
    (tmp_path / "file").touch()
    line = refused(tmp_path / "other", rescue_dir=str(tmp_path / "file"))
    assert line == (
        f"{tmp_path / 'file'}: can't be written: {tmp_path / 'file'} is a file; choose another "
        "folder with --rescue-dir"
    )

    def read_only(**_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(files.tempfile, "TemporaryFile", read_only)
    line = refused(tmp_path / "other", rescue_dir=str(tmp_path))
    assert line.endswith("can't be written: no permission; choose another folder with --rescue-dir")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("reason", "lines"),
    [
        (None, []),
        (StopReason(signal.SIGTERM), ["stopped by SIGTERM after step 6; continue with --resume"]),
        (StopReason(is_limit=True), ["stopped as asked after step 6; continue with --resume"]),
    ],
)
def test_the_end_says_why(tmp_path: Path, reason: StopReason | None, lines: list[str]) -> None:
    state, logged = make_state(steps=4), []
    state.epoch, state.step = 1, 2
    with open_folder(tmp_path, lines=logged) as folder:
        folder.finish(state, reason)
    assert logged == lines
    assert not (tmp_path / "last.pt").exists()  # nothing had failed


@pytest.mark.parametrize(
    ("steps", "minutes", "due"),
    [(0, 0.0, []), (3, 0.0, [3, 6]), (0, 1.0, [1, 2, 3, 4, 5, 6]), (3, 2.0, [3, 6])],
)
def test_a_checkpoint_is_due_by_steps_or_by_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, minutes: float, due: list[int]
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(folder_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    run = {"save_every_steps": steps, "save_every_minutes": minutes}
    with open_folder(tmp_path, run=run) as folder:
        clock.now += 60.0
        assert [step for step in range(1, 7) if folder.is_due(step)] == due
        folder.save(make_state())
        clock.now += 59.9
        assert [step for step in range(1, 7) if folder.is_due(step)] == ([3, 6] if steps else [])


def test_the_thread_that_writes_computes_on_one_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of libgomp's threads than cores would slow training down for the rest of the run."""
    before, found = torch.get_num_threads(), list[int]()
    monkeypatch.setattr(checkpoint, "save", lambda *_, **how: found.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        with open_folder(tmp_path) as folder:
            folder.save(make_state())
        assert found == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# -- two faults in a row ------------------------------------------------------------------------


def saved_run(path: Path, *scores: float, every: int = 0) -> TrainState:
    """A run of epochs with these scores; the weight of epoch n is n."""
    state = make_state(make_network().float())
    with open_folder(path, run={"save_every": every}) as folder:
        train_on(state, folder, *scores)
    return state


def train_on(state: TrainState, folder: RunFolder, *scores: float) -> None:
    for score in scores:
        set_weights(state, state.epoch + 1.0)
        folder.save(state, is_best=state.finish_epoch(SimpleNamespace(
            scores=SimpleNamespace(dice=score), score=score, score_name="Dice", threshold=None)))  # type: ignore[arg-type]  # fmt: skip


@contextmanager
def resumed_run(
    path: Path, *, every: int = 0, **launch: Any
) -> Iterator[tuple[TrainState, RunFolder, list[str]]]:
    config = config_of(path, **launch)
    config = replace(config, run=replace(config.run, save_every=every))
    lines: list[str] = []
    with RunFolder(config, World(), lines.append) as folder:
        resumed = folder.open(config)
        assert resumed.content is not None
        state = make_state(make_network().float())
        resumed.restore(state)
        folder.claim(config, resumed, ABOUT)
        folder.begin(make_data(), state, resumed)
        yield state, folder, [*resumed.notes, *lines]


@pytest.mark.parametrize(("module", "name"), [(os, "fsync"), (Path, "replace")])
def test_a_fault_after_a_fall_back_keeps_the_good_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    """Issue: the corrupt last.pt took the place of the good last.1.pt before the new file was safe."""
    saved_run(tmp_path, 0.1, 0.2)
    (tmp_path / "last.pt").write_bytes(b"corrupt")
    real = getattr(module, name)

    def full(*args: Any) -> None:
        path = args[1] if args[1:] else Path(f"/proc/self/fd/{args[0]}").readlink()
        if "last.pt" in path.name:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, full)
        with resumed_run(tmp_path, resume="auto") as (state, folder, _):
            folder.save(state)
    assert first_weight(tmp_path / "last.1.pt") == 1.0
    assert opened(tmp_path, resume="auto").source.name == "last.1.pt"


def test_the_best_that_a_full_disk_refused_is_written_by_the_next_save(
    tmp_path: Path, disk: FullDisk
) -> None:
    """Issue: last.pt said that epoch 2 was the best, and best.pt stayed that of epoch 1."""
    state, save = make_state(make_network().float()), disk.save
    refusing = [True]

    def refuse_best(path: Path, content: dict[str, Any], **how: bool) -> None:
        if path.name in ("best.pt", "epoch_0002.pt") and refusing[0] and content["best"]["epoch"]:
            raise disk.error
        save(path, content, **how)

    disk.save = refuse_best  # type: ignore[assignment]
    with open_folder(tmp_path, run={"save_every": 2}) as folder:
        train_on(state, folder, 0.1, 0.2)
        folder.wait()
        assert first_weight(tmp_path / "best.pt") == 1.0
        refusing[0] = False
        train_on(state, folder, 0.15)
    assert first_weight(tmp_path / "best.pt") == first_weight(tmp_path / "epoch_0002.pt") == 2.0
    assert first_weight(tmp_path / "last.pt") == 3.0


@pytest.mark.parametrize("score", [0.2, math.nan], ids=["scored", "nothing to score"])
def test_a_kill_between_last_and_best_leaves_the_best_due(tmp_path: Path, score: float) -> None:
    saved_run(tmp_path, score, score)
    (tmp_path / "best.pt").unlink()
    with resumed_run(tmp_path, resume="auto") as (_, folder, _):
        folder.wait()
        assert first_weight(tmp_path / "best.pt") == 2.0


@pytest.mark.parametrize("best", [{"score": torch.ones(2), "epoch": 1}, None])
def test_a_best_that_says_nothing_sound_is_another_one(tmp_path: Path, best: Any) -> None:
    saved_run(tmp_path, 0.1, 0.2)
    content = checkpoint.load(tmp_path / "best.pt")
    checkpoint.save(tmp_path / "best.pt", {**content, "best": best})
    assert opened(tmp_path, resume="auto").due.keys() == {"best.pt"}


def test_a_best_that_is_nowhere_is_replaced_by_the_best_from_there_on(tmp_path: Path) -> None:
    """Issue: after best.pt was moved away, a run that never got better had none."""
    saved_run(tmp_path, 0.3, 0.2)
    (tmp_path / "best.pt").unlink()
    with resumed_run(tmp_path, resume="auto") as (state, folder, lines):
        train_on(state, folder, 0.1)
    assert f"{tmp_path / 'best.pt'} is not the network of epoch 1, the best so far" in lines[1]
    best = checkpoint.load(tmp_path / "best.pt")["best"]
    assert (best["score"], best["epoch"], best["name"]) == (0.1, 2, "Dice")


@pytest.mark.parametrize(("back", "best"), [(2, 2.0), (3, 2.0)])
def test_going_back_deletes_the_other_future(tmp_path: Path, back: int, best: float) -> None:
    """Issue: best.pt and later epochs stayed, and the last lines claimed their score."""
    saved_run(tmp_path, 0.1, 0.2, 0.15, 0.3, every=1)
    path = tmp_path / f"epoch_000{back}.pt"
    with resumed_run(tmp_path, resume=str(path), overwrite=True) as (state, folder, _):
        folder.wait()
        assert state.epoch == back
        kept = {f"epoch_000{n}.pt" for n in range(1, back + 1)}
        assert files_in(tmp_path) >= kept and not (tmp_path / "epoch_0004.pt").exists()
        assert first_weight(tmp_path / "best.pt") == best
        assert first_weight(tmp_path / "last.pt") == back
        assert not (tmp_path / "last.1.pt").exists()
        train_on(state, folder, 0.05)
    (tmp_path / "last.pt").write_bytes(b"corrupt")  # the file before it is of this future, too
    assert opened(tmp_path, resume="auto").content["best"]["score"] < 0.3  # type: ignore[index]


def test_a_restart_of_a_run_that_went_back_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue: under a --rdzv-id that the run has had, --resume epoch_0001.pt took last.pt instead."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "42")
    saved_run(tmp_path, 0.1, 0.2, every=1)
    back = {"resume": str(tmp_path / "epoch_0001.pt")}
    line = refused(tmp_path, **back)
    assert f"its run has continued to {tmp_path / 'last.pt'}; use --overwrite to go back" in line
    for epoch in (1, 2):  # the second is torchrun's restart of the same command
        with resumed_run(tmp_path, **back, overwrite=True) as (state, folder, _):
            assert state.epoch == epoch
            train_on(state, folder, 0.05)
    assert opened(tmp_path, resume="auto").content["position"]["epoch"] == 3  # type: ignore[index]


def test_untrained_weights_are_not_kept(tmp_path: Path) -> None:
    with open_folder(tmp_path, run={"save_every": 1}) as folder:
        folder.begin(make_data(), make_state(), StartPoint())
    assert not list(tmp_path.glob("epoch_*"))


def test_what_could_not_be_saved_is_rescued_when_an_error_ends_the_run(
    tmp_path: Path, disk: FullDisk
) -> None:
    """Issue: an unreadable file after failed saves lost all since the last good one."""
    run, rescue, lines = tmp_path / "run", tmp_path / "rescue", list[str]()
    with (
        pytest.raises(UserError, match="unreadable"),
        open_folder(run, lines=lines, rescue_dir=str(rescue)) as folder,
    ):
        disk.full = [run]
        folder.save(make_state())
        raise UserError("a.png: unreadable")
    (elsewhere,) = rescue.iterdir()
    assert (elsewhere / "last.pt").is_file() and str(elsewhere) in lines[-1]


@pytest.mark.parametrize("name", ["nope.pt", "epoch_0007.pt"])
def test_a_checkpoint_that_is_not_there_is_no_reason_to_delete_the_run(
    tmp_path: Path, name: str
) -> None:
    saved_run(tmp_path, 0.1, 0.2, every=1)
    line = refused(tmp_path, resume=str(tmp_path / name))
    assert "continue its run from last.pt with --resume" in line and "--overwrite" not in line


@pytest.mark.parametrize("name", ["best.pt", "config.yaml"])
def test_what_is_no_checkpoint_of_a_run_is_said_before_what_came_after(
    tmp_path: Path, name: str
) -> None:
    saved_run(tmp_path, 0.1, 0.2)
    assert "--overwrite" not in refused(tmp_path, resume=str(tmp_path / name))


def test_a_kept_checkpoint_that_was_copied_alone_is_continued(tmp_path: Path) -> None:
    """Issue: it was taken for a file of the user's, and no save worked."""
    saved_run(tmp_path / "run", 0.1, 0.2, every=1)
    (tmp_path / "new").mkdir()
    path = shutil.copy(tmp_path / "run" / "epoch_0001.pt", tmp_path / "new")
    with resumed_run(tmp_path / "new", every=1, resume=str(path)) as (state, folder, _):
        train_on(state, folder, 0.3)
        folder.wait()
        folder.finish(state, None)  # nothing is left to write
    assert first_weight(tmp_path / "new" / "last.pt") == 2.0


def test_a_file_of_the_users_in_the_way_of_one_checkpoint_stops_no_other(tmp_path: Path) -> None:
    state, lines = make_state(make_network().float()), list[str]()
    with open_folder(tmp_path, run={"save_every": 1}, lines=lines) as folder:
        heard = list[str]()
        folder.on_saved = lambda path: heard.append(path.name)
        (tmp_path / "epoch_0001.pt").write_text("mine")
        train_on(state, folder, 0.1)
        folder.wait()
        assert heard == ["last.pt", "best.pt"]  # issue: nobody heard of these
        assert first_weight(tmp_path / "last.pt") == first_weight(tmp_path / "best.pt") == 1.0
        assert "not of the run" in lines[0]
        (tmp_path / "epoch_0001.pt").rename(tmp_path / "mine.pt")
        train_on(state, folder, 0.05)
    assert first_weight(tmp_path / "epoch_0001.pt") == 1.0
    assert (tmp_path / "mine.pt").read_text() == "mine"
