"""A run at an address: what is put when, who may write, and what another machine resumes from."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from tests.object_store import MemoryBucket, ObjectStore
from tests.runs.test_folder import ABOUT, SAVED, config_of
from tests.tiny import make_data, make_state
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.checkpoints.run_files import HEADS
from unet_ddp.distributed.stop_signal import StopReason
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError
from unet_ddp.extras.cloud import (
    StorageError,
    Url,
    delete,
    list_objects,
    mirror,
    pointer,
    put,
    read,
    read_chunks,
    working_folder,
)
from unet_ddp.extras.cloud.pointer import find_newest
from unet_ddp.files import write_text
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.resume import StartPoint
from unet_ddp.training.state import TrainState

FILES = {"config.yaml", "split.csv", "last.json"}
PUT = pointer.put


class Machine:
    """A machine with a cache folder of its own, on which runs at one address start."""

    def __init__(self, address: Url, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.address, self.cache, self.monkeypatch = address, cache, monkeypatch
        self.lines: list[str] = []

    @contextmanager
    def opened(self, save_every: int = 0, **launch: Any) -> Iterator[tuple[RunFolder, StartPoint]]:
        """The folder, not claimed, and what the run starts from."""
        self.monkeypatch.setenv("XDG_CACHE_HOME", str(self.cache))
        config = config_of(self.address, **launch)
        self.config = config = replace(config, run=replace(config.run, save_every=save_every))
        log = self.lines.append
        with RunFolder(config, World(), log) as folder:
            yield folder, folder.open(config)

    @contextmanager
    def run(self, **launch: Any) -> Iterator[RunFolder]:
        with self.opened(**launch) as (folder, resumed):
            self.claim(folder, resumed)
            yield folder

    def claim(self, folder: RunFolder, resumed: StartPoint) -> None:
        about = {name: SAVED[name] for name in ABOUT}
        folder.claim(self.config, resumed, about)
        if resumed.is_new:
            for name in ("config.yaml", "split.csv"):
                (folder.path / name).write_bytes(HEADS[name])
        elif resumed.source == folder.last and not resumed.due:
            with mock.patch.object(mirror.CloudMirror, "log_failures"):  # nor waits for the copy
                folder.begin(make_data(), make_state(), resumed)

    def resumed(self, **launch: Any) -> StartPoint:
        with self.opened(**launch) as (_, resumed):
            return resumed

    def refused(self, **launch: Any) -> str:
        with pytest.raises(UserError) as error, self.opened(**launch):
            pass
        return str(error.value)


@pytest.fixture
def one(memory_store: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(Url("s3://bucket/runs/run"), tmp_path / "one", monkeypatch)


@pytest.fixture
def two(one: Machine, tmp_path: Path) -> Machine:
    """Another machine, which shares nothing but the address."""
    return Machine(one.address, tmp_path / "two", one.monkeypatch)


def state_after(epoch: int) -> TrainState:
    """The state of a run after this many epochs; its first weight says so."""
    state = make_state()
    state.epoch = epoch
    with torch.no_grad():
        next(state.network.parameters()).fill_(epoch)
    return state


def save(folder: RunFolder, epoch: int, *, is_best: bool = False) -> None:
    folder.save(state_after(epoch), is_best=is_best)
    folder.wait()


def weight(content: dict[str, Any]) -> float:
    return float(content["model"]["0.weight"].flatten()[0])


def objects(address: Url) -> set[str]:
    return {key for key, _, _ in list_objects(address)}


def generations(address: Url) -> list[int]:
    """Of the saves; what is below last/ are these and the best one, and nothing else."""
    pointer = json.loads(read(address / "last.json"))
    named = [each for each in (*pointer["saves"], pointer["best"]) if each]
    assert {f"last/{each['name']}" for each in named} == {
        key for key in objects(address) if key.startswith("last/")
    }
    return [each["generation"] for each in pointer["saves"]]


# -- what is put --------------------------------------------------------------------------------


def test_a_save_is_put_as_it_is_on_the_disk_and_two_are_kept(one: Machine) -> None:
    with one.run() as folder:
        assert objects(one.address) == {"last.json"} and generations(one.address) == []
        save(folder, 0)
        assert generations(one.address) == [1] and objects(one.address) > FILES
        save(folder, 1, is_best=True)
        save(folder, 2)
        assert generations(one.address) == [3, 2]
        for name in ("last.pt", "best.pt"):
            assert read(find_newest(one.address / name)) == (folder.path / name).read_bytes()
        assert read(one.address / "best.pt") == (folder.path / "best.pt").read_bytes()
        write_text(folder.path / "report.html", HEADS["report.html"].decode())
    assert read(one.address / "report.html") == HEADS["report.html"]  # written after the last save
    assert objects(one.address) == {
        *FILES, "best.pt", "report.html", *(k for k in objects(one.address) if "last/" in k)
    }  # fmt: skip
    assert weight(checkpoint.load(one.address / "last.pt")) == 2
    assert weight(checkpoint.load(one.address / "best.pt")) == 1


def test_only_what_has_changed_is_put(one: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    with one.run() as folder:
        save(folder, 1, is_best=True)
        for module in (pointer, mirror):
            monkeypatch.setattr(
                module, "put", lambda p, *a, **h: names.append(p.name) or PUT(p, *a, **h)
            )
        write_text(folder.path / "metrics.csv", "epoch,step,\n")
        save(folder, 2)
        # Once for the name of the new file, and once for the checkpoint.
        assert [*names[:2], names[3]] == ["last.json", "metrics.csv", "last.json"]
        folder.finish(state_after(2), None)
    assert len(names) == 4


def test_training_does_not_wait_for_storage(one: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves that are due meanwhile are written to the disk; of them the last one is put."""
    gate, entered = threading.Event(), threading.Event()

    def slowly(path: Url, *args: Any, **how: Any) -> Any:
        entered.set()
        assert gate.wait(60)
        return PUT(path, *args, **how)

    with one.run() as folder:
        save(folder, 0)
        monkeypatch.setattr(pointer, "put", slowly)
        monkeypatch.setattr(mirror, "SOON", 0.01)
        folder.save(state_after(1))
        assert entered.wait(60)
        for epoch in (2, 3, 4):
            folder.save(state_after(epoch))
        threading.Timer(0.5, gate.set).start()
        folder.wait()
        assert one.lines[-1] == f"waiting for {one.address}; the last save is in {folder.path}"
        assert weight(checkpoint.load(one.address / "last.pt")) == 4
        assert generations(one.address) == [3, 2]


class KillError(BaseException):
    """Stands for a kill."""


class Gate:
    """Holds the next put of a file, of the best network if none is named, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str = "best.pt") -> None:
        self.name = name
        self.reached, self.opened = threading.Event(), threading.Event()
        self.after: Callable[[], object] = lambda: None  # is called when a pointer was put
        for module in (pointer, mirror):
            monkeypatch.setattr(module, "put", self.put)

    def put(self, path: Url, *args: Any, **how: Any) -> Any:
        if path.name.endswith(self.name) and not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(60)
        version = PUT(path, *args, **how)
        if path.name == "last.json":
            self.after()
        return version


def weights(address: Url) -> list[float]:
    return [weight(checkpoint.load(address / name)) for name in ("last.pt", "best.pt")]


def test_the_best_network_is_put_with_the_checkpoint_that_names_it(
    one: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if saves that are best, too, are written while it is put."""
    pairs: list[list[float]] = []
    with one.run() as folder:
        save(folder, 1, is_best=True)
        gate = Gate(monkeypatch)
        gate.after = lambda: pairs.append(weights(one.address))
        folder.save(state_after(2), is_best=True)
        assert gate.reached.wait(60)
        for epoch in (3, 4):
            folder.save(state_after(epoch), is_best=True)
        gate.opened.set()
        folder.wait()
    assert pairs[0] == [2, 2] and pairs[-1] == [4, 4]
    assert all(last == best for last, best in pairs)


def test_a_command_that_puts_a_file_of_the_run_does_not_end_it(
    one: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It adds the name to the pointer just before the run puts the next one, twice."""
    names = ["report.html", "samples.png"]

    def put_after_a_command(path: Url, *args: Any, **how: Any) -> Any:
        if path.name == "last.json" and names:
            name = names.pop()
            with monkeypatch.context() as patch:
                patch.setattr(pointer, "put", PUT)
                other = pointer.StoredRun(path.parent)
                assert other.open() is not None
                other.record_files([name])
        return PUT(path, *args, **how)

    with one.run() as folder:
        save(folder, 1)
        monkeypatch.setattr(pointer, "put", put_after_a_command)
        write_text(folder.path / "metrics.csv", "epoch,step,\n")
        save(folder, 2)
        folder.finish(state_after(2), None)
    files = set(json.loads(read(one.address / "last.json"))["files"])
    assert {"metrics.csv", "report.html", "samples.png"} < files and generations(one.address) == [
        2,
        1,
    ]
    put(one.address / "report.html", b"a page")
    assert one.resumed(resume="auto").content is not None


def test_a_start_that_lost_replaces_nothing(
    one: Machine, two: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one takes the run over and ends while the best network is being put."""
    with one.run() as folder:
        save(folder, 1, is_best=True)
        gate = Gate(monkeypatch)
        folder.save(state_after(7), is_best=True)
        assert gate.reached.wait(60)
        with two.run(resume="auto") as other:
            save(other, 3, is_best=True)
        gate.opened.set()
        with pytest.raises(RunError, match="another start has taken the run over"):
            folder.wait()
    assert weights(one.address) == [3, 3]
    assert read(one.address / "best.pt") == read(find_newest(one.address / "best.pt"))


@pytest.mark.parametrize("others", ["its own rows", "a new run"])
def test_a_put_of_a_start_that_has_lost_comes_too_late(
    one: Machine, two: Machine, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    """Found by a search: rows of one start beside the last.pt of another."""
    with one.run() as folder:
        write_text(folder.path / "metrics.csv", "epoch,step,\n1\n")
        save(folder, 1)
        write_text(folder.path / "metrics.csv", "epoch,step,\n1\n2 of one\n")
        gate = Gate(monkeypatch, "metrics.csv")
        folder.save(state_after(2))
        assert gate.reached.wait(60)
        is_new = others == "a new run"
        with two.run(**{"overwrite": True} if is_new else {"resume": "auto"}) as other:
            if not is_new:
                write_text(other.path / "metrics.csv", "epoch,step,\n1\n2 of two\n")
            save(other, 3)
        gate.opened.set()
        with pytest.raises(RunError, match="another start has taken the run over"):
            folder.wait()
    names = {name for name, _, _ in list_objects(one.address)}
    if is_new:
        assert "metrics.csv" not in names
    else:
        assert read(one.address / "metrics.csv") == b"epoch,step,\n1\n2 of two\n"


@pytest.mark.parametrize("kind", ["throttled", "cut", "unheard"])
def test_answers_with_faults_cost_nothing_but_time(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    one = Machine(Url(f"s3://bucket/{tmp_path.name}/run"), tmp_path, monkeypatch)
    with one.run() as folder:
        for epoch in (1, 2, 3):
            object_store.set_fault(kind, every=2, method="PUT", count=1)
            save(folder, epoch, is_best=True)
        folder.finish(state_after(3), None)
    assert not [line for line in one.lines if "warning" in line]
    assert one.lines[-1] == f"{one.address} has save 3" and generations(one.address) == [3, 2]


# -- who may write ------------------------------------------------------------------------------


def test_a_run_is_not_overwritten_by_accident(one: Machine, two: Machine) -> None:
    with one.run() as folder:
        assert two.refused().startswith(f"{one.address} contains a run (last.json): continue it")
        save(folder, 1)
    for machine in (one, two):
        line = machine.refused()
        assert "--resume" in line and "--exp-name" in line and "--overwrite" in line
    with two.run(overwrite=True) as folder:
        save(folder, 5)
    assert weight(checkpoint.load(one.address / "last.pt")) == 5
    assert generations(one.address) == [1]


def test_a_new_run_deletes_what_runs_have_put_and_nothing_else(one: Machine, two: Machine) -> None:
    """What the pointer does not name is the user's, and is never replaced."""
    others = {"notes.txt", "sub/best.pt", "last/notes.txt", "last/last/000001-0a0b0c0d.pt"}
    others |= {"events.out.tfevents.1.lab", "last/last.json"}
    for name in others:
        put(one.address / name, name.encode())
    with one.run() as folder:
        for epoch in range(4):
            save(folder, epoch, is_best=True)
    for name, starts in (
        ("report.html", {"overwrite": True}),
        ("epoch_0005.pt", {"resume": "auto"}),
    ):
        put(one.address / name, b"of the user")
        for machine in (one, two):
            assert machine.refused(**starts).startswith(f"{one.address / name}: not of the run, ")
        delete(one.address / name)
    with two.run(overwrite=True) as folder:
        save(folder, 0)
    assert {k for k in objects(one.address) if not k.startswith("last/0")} == FILES | others
    assert all(read(one.address / name) == name.encode() for name in others)


def test_only_names_that_a_new_run_may_put_are_refused(one: Machine) -> None:
    for name in ("epoch_0005.pt", "profile.json"):
        put(one.address / name, b"of the user")
    for how in ({"save_every": 5}, {"profile": True}):
        assert one.refused(**how).endswith(": not of the run, which would replace it: rename it")
    with one.run(save_every=2) as folder:
        save(folder, 4)
    assert {"epoch_0004.pt", "epoch_0005.pt"} <= objects(one.address)
    assert read(one.address / "epoch_0005.pt") == b"of the user"


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_run_stays_until_the_one_that_overwrites_it_is_put(
    one: Machine, two: Machine, broken: list[str], is_saved: bool
) -> None:
    """After a kill before that, another machine has the run before; so has this one, unless its disk has the new one."""
    with one.run() as folder:
        write_text(folder.path / "metrics.csv", "epoch,step,\n4\n")
        save(folder, 1, is_best=True)
    before = {name: read(one.address / name) for name in objects(one.address) - {"last.json"}}
    with two.run(overwrite=True) as folder:
        if is_saved:
            broken.append("no answer")
            save(folder, 5)
    broken.clear()
    assert {n: read(one.address / n) for n in objects(one.address) - {"last.json"}} == before
    assert weights(one.address) == [1, 1]
    assert "contains a run" in two.refused()
    content = one.resumed(resume="auto").content
    assert content is not None and weight(content) == 1
    with two.run(resume="auto") as folder:
        assert weight(checkpoint.load(folder.last)) == (5 if is_saved else 1)
        save(folder, 6)
    there = objects(one.address)
    if is_saved:
        assert there == FILES | {name for name in there if name.startswith("last/")}
        assert len(generations(one.address)) < 3 and "last.json" in two.refused()
    else:
        assert {"metrics.csv", "best.pt"} <= there and weights(one.address) == [6, 1]
        assert generations(one.address) == [2, 1]


def test_objects_of_the_run_before_that_a_kill_has_left_are_not_the_new_run_s(
    one: Machine, two: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one.run() as folder:
        write_text(folder.path / "metrics.csv", "epoch,step,\n4\n")
        save(folder, 1, is_best=True)

    def die(path: Url) -> None:
        if path.parent == one.address:
            raise KillError

    with pytest.raises(KillError), two.run(overwrite=True) as folder:
        monkeypatch.setattr(pointer, "delete", die)
        save(folder, 5)
    monkeypatch.setattr(pointer, "delete", delete)
    assert "metrics.csv" in objects(one.address)
    with one.run(resume="auto") as folder:
        assert weight(checkpoint.load(folder.last)) == 5
        assert not (folder.path / "metrics.csv").exists()
        save(folder, 6)
    assert not {"metrics.csv", "best.pt"} & objects(one.address)


def test_of_two_that_start_at_once_one_is_refused(one: Machine, two: Machine) -> None:
    for launch in ({}, {"resume": "auto"}):
        with one.opened(**launch) as first, two.opened(**launch) as second:
            one.claim(*first)
            save(first[0], 1)
            with pytest.raises(UserError, match="another run has begun or continued there"):
                two.claim(*second)


def test_a_run_that_was_continued_elsewhere_ends_and_puts_nothing(
    one: Machine, two: Machine
) -> None:
    with one.run() as folder:
        save(folder, 1, is_best=True)
        with two.run(resume="auto") as other:
            save(other, 2, is_best=True)
        folder.save(state_after(7), is_best=True)
        with pytest.raises(
            RunError, match="another start has taken the run over; this one ends"
        ) as e:
            folder.wait()
        assert str(folder.path) in str(e.value)
    assert weight(checkpoint.load(one.address / "last.pt")) == 2
    assert weight(checkpoint.load(one.address / "best.pt")) == 2
    # There the later state is older: this machine takes the one in storage, and keeps its own.
    for launch in ({"resume": "auto"}, {"overwrite": True}):
        with one.run(**launch) as folder:
            kept = [
                checkpoint.load(folder.path / "kept-1" / name) for name in ("last.pt", "best.pt")
            ]
            assert [*map(weight, kept)] == [7, 7]
            assert any(
                line.startswith(f"{folder.path / 'kept-1'} has the files") for line in one.lines
            )
            assert folder.last.is_file() == ("resume" in launch)


# -- resuming -----------------------------------------------------------------------------------


def test_another_machine_resumes_from_storage(one: Machine, two: Machine) -> None:
    with one.run() as folder:
        save(folder, 1, is_best=True)
        write_text(folder.path / "metrics.csv", "epoch,step,\n4\n")
        save(folder, 2)
    best = json.loads(read(one.address / "last.json"))["best"]
    with two.run(resume="auto") as folder:
        assert (
            json.loads(read(one.address / "last.json"))["best"] == best
        )  # also if it is killed now
        assert two.lines[0] == f"{one.address}: save 2 copied to {folder.path}"
        assert {"last.pt", "best.pt", "metrics.csv"} <= {
            path.name for path in folder.path.iterdir()
        }
        for name in ("last.pt", "best.pt"):
            assert (folder.path / name).read_bytes() == read(find_newest(one.address / name))
        folder.wait()
        assert generations(one.address) == [2, 1]  # the same content is not put again
        save(folder, 3)
        assert generations(one.address) == [3, 2]


def test_a_start_that_is_killed_while_it_copies_is_begun_again(
    one: Machine, two: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would go on, and be put, without the rows and the best network of before."""
    with one.run() as folder:
        write_text(folder.path / "metrics.csv", "epoch,step,\n4\n")
        save(folder, 1, is_best=True)
    with two.run(resume="auto"):
        pass

    def die(path: Url) -> Any:
        raise KillError

    two.resumed(resume="auto").source.unlink()  # an empty cache, but for the tokens
    with monkeypatch.context() as patch, pytest.raises(KillError):
        patch.setattr(working_folder, "read_chunks", die)  # at metrics.csv
        two.resumed(resume="auto")
    with two.run(resume="auto") as run:
        assert (run.path / "metrics.csv").read_text() == "epoch,step,\n4\n"
        assert weight(checkpoint.load(run.path / "best.pt")) == 1


def test_an_older_checkpoint_is_resumed_by_its_address(one: Machine, two: Machine) -> None:
    with one.run(save_every=1) as folder:
        for epoch in (1, 2):
            save(folder, epoch)
    delete(one.address / "epoch_0002.pt")
    (folder.path / "epoch_0001.pt").unlink()
    file = str(one.address / "epoch_0001.pt")
    assert "its run has continued to" in two.refused(resume=file)
    for machine in (two, one):  # which does not have this file, but is the last one's otherwise
        resumed = machine.resumed(resume=file, overwrite=True)
        assert resumed.source.name == "epoch_0001.pt" and resumed.content is not None
    put(one.address / "epoch_0001.pt", b"")  # which is not copied again
    assert one.resumed(resume=file, overwrite=True).content is not None


def test_a_run_whose_storage_was_emptied_goes_on_from_this_machine(one: Machine) -> None:
    with one.run() as folder:
        save(folder, 1)
    for key in objects(one.address):
        delete(one.address / key)
    with one.run(resume="auto") as folder:
        folder.wait()
        assert generations(one.address) == [1]
    assert weight(checkpoint.load(one.address / "last.pt")) == 1


def test_a_full_disk_is_said_with_the_folder_to_change(
    one: Machine, two: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one.run() as folder:
        save(folder, 2)

    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(working_folder, "replacing", fail)
    line = two.refused(resume="auto")
    assert line.startswith(str(two.cache)) and "No space left on device" in line
    assert line.endswith("make room, or name another folder with XDG_CACHE_HOME")


@pytest.mark.parametrize("damage", ["changed", "lost"])
def test_a_corrupt_checkpoint_falls_back_with_a_warning(
    one: Machine, two: Machine, damage: str
) -> None:
    with one.run() as folder:
        for epoch in (1, 2):
            save(folder, epoch)
    newest = find_newest(one.address / "last.pt")
    if damage == "lost":
        delete(newest)
    else:
        put(newest, read(newest)[:-1] + b"!")
    with two.run(resume="auto") as folder:
        assert two.lines[0].startswith(f"warning: {newest}: ") and "using" in two.lines[0]
        assert weight(checkpoint.load(folder.last)) == 1
        save(folder, 2)
    assert weight(checkpoint.load(one.address / "last.pt")) == 2
    assert len(generations(one.address)) == 2


def test_a_corrupt_file_of_this_machine_is_not_newer_than_storage(one: Machine) -> None:
    with one.run() as folder:
        for epoch in (1, 2):
            save(folder, epoch)
    content = bytearray(folder.last.read_bytes())
    content[len(content) // 2] ^= 255
    folder.last.write_bytes(content)
    resumed = one.resumed(resume="auto")
    assert resumed.content is not None and weight(resumed.content) == 2
    assert f"{folder.last}: corrupt" in one.lines[1] and "last/000002-" in one.lines[1]
    assert (folder.path / "kept-1" / "last.pt").read_bytes() == content


def test_storage_that_does_not_answer_for_a_moment_is_no_loss(
    one: Machine, two: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start does not go back to the checkpoint before, which would be the newest from then on."""
    with one.run() as folder:
        for epoch in (1, 2):
            save(folder, epoch)

    def refuse_newest(path: Url) -> Any:
        if path == find_newest(one.address / "last.pt"):
            raise StorageError(f"{path}: access is denied")
        return read_chunks(path)

    with monkeypatch.context() as patch:
        patch.setattr(pointer, "read_chunks", refuse_newest)
        assert two.refused(resume="auto").endswith(".pt: access is denied")
    resumed = two.resumed(resume="auto")
    assert resumed.content is not None and weight(resumed.content) == 2


def test_what_can_not_be_resumed_is_refused_and_changes_nothing(one: Machine, two: Machine) -> None:
    assert one.refused(resume="auto").startswith(
        f"{one.address}: no run to resume; start a new one"
    )
    with one.run() as folder:
        assert two.refused(resume="auto").endswith(
            "no checkpoint was saved; start again with --overwrite"
        )
        save(folder, 1)
    for key in objects(one.address):
        if key.startswith("last/"):
            put(one.address / key, b"another content")
    assert "corrupt: its SHA-256 is" in two.refused(resume="auto")
    with two.opened(overwrite=True) as (folder, _):
        assert [path.name for path in folder.path.iterdir()] == [".lock"]
    put(one.address / "last.json", b'{"token": 5}')
    assert one.refused().startswith(f"{one.address}/last.json: corrupt (token: 5; expected text")


def test_a_restart_of_torchrun_resumes_on_another_machine(
    one: Machine, two: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    with one.run() as folder:
        save(folder, 3)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    content = two.resumed().content
    assert content is not None and weight(content) == 3
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert "contains a run" in two.refused()


# -- storage that fails -------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """While the list has a text, nothing can be put, and the text says why."""
    reason: list[str] = []

    def fail(path: Url, *args: Any, **how: Any) -> Any:
        if reason:
            raise UserError(f"{path}: {reason[0]}")
        return PUT(path, *args, **how)

    for module in (pointer, mirror):
        monkeypatch.setattr(module, "put", fail)
    yield reason


def test_what_can_not_be_put_is_a_warning_and_the_next_save_tries_again(
    one: Machine, broken: list[str]
) -> None:
    with one.run() as folder:
        save(folder, 0)
        broken.append("no answer")
        save(folder, 1, is_best=True)
        (line,) = [line for line in one.lines if "warning" in line]
        assert line.endswith(
            f": no answer: it stays in {folder.path}, and the next save tries again"
        )
        broken.clear()
        save(folder, 2)
        assert "best.pt" in objects(one.address) and generations(one.address) == [2, 1]
        folder.finish(state_after(2), None)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_an_end_that_can_not_be_put_says_where_the_files_are_and_resumes_from_them(
    one: Machine, two: Machine, broken: list[str], is_stopped: bool
) -> None:
    with one.run() as folder:
        save(folder, 1)
        broken.append("no answer")
        save(folder, 2)
        reason = StopReason(is_limit=True) if is_stopped else None
        with pytest.raises(
            RunError, match=r"the run has ended, but .*: no answer; its files"
        ) as error:
            folder.finish(state_after(2), reason)
        assert f"are in {folder.path}: --resume on this machine puts them" in str(error.value)
    broken.clear()
    assert weight(checkpoint.load(one.address / "last.pt")) == 1
    with one.run(resume="auto") as folder:
        assert f"{folder.last} is newer than what {one.address} has: it is used" in one.lines
        folder.wait()
        assert weight(checkpoint.load(one.address / "last.pt")) == 2
    assert two.resumed(resume="auto").content is not None


def test_files_that_could_not_be_put_are_kept_by_the_next_run(
    one: Machine, broken: list[str]
) -> None:
    """last.pt was put, metrics.csv was not: the error names the folder, so a new run keeps it."""
    with one.run() as folder:
        save(folder, 1)
        write_text(folder.path / "metrics.csv", "epoch,step,\n7\n")
        broken.append("no answer")
        with pytest.raises(RunError, match="no answer; its files are in"):
            folder.finish(state_after(1), None)
    broken.clear()
    with one.run(overwrite=True) as folder:
        assert (folder.path / "kept-1" / "metrics.csv").read_text() == "epoch,step,\n7\n"


def test_a_kill_between_checkpoint_and_pointer_leaves_the_one_before(
    one: Machine, two: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(path: Url, *args: Any, **how: Any) -> Any:
        if path.name == "last.json":
            raise KillError
        return PUT(path, *args, **how)

    with pytest.raises(KillError), one.run() as folder:
        save(folder, 1)
        monkeypatch.setattr(pointer, "put", die)
        save(folder, 2)
    monkeypatch.setattr(pointer, "put", PUT)
    assert len([key for key in objects(one.address) if key.startswith("last/")]) == 2
    with two.run(resume="auto") as folder:
        assert weight(checkpoint.load(folder.last)) == 1
        save(folder, 2)
    assert generations(one.address) == [2, 1]  # and what nobody names is gone


def test_what_can_not_be_deleted_does_no_harm(
    one: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Url) -> None:
        raise UserError(f"{path}: access is denied")

    monkeypatch.setattr(pointer, "delete", refuse)
    with one.run() as folder:
        for epoch in (1, 2, 3):
            save(folder, epoch)
    assert not [line for line in one.lines if "warning" in line]
    assert len([key for key in objects(one.address) if key.startswith("last/")]) == 3


def test_addresses_that_can_not_be_written_to_are_refused(
    one: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(Path())
    web = replace(config, run=replace(config.run, checkpoints="http://host/run"))
    with pytest.raises(UserError, match=r"can't be written to; name a .* with --checkpoints"):
        RunFolder(web, World(), print)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "unet_ddp").mkdir(mode=0o777)
    (tmp_path / "one" / "unet_ddp").chmod(0o777)
    assert "name a folder that only you may write to with XDG_CACHE_HOME" in one.refused()
    assert capsys.readouterr().err == ""  # said once


def test_a_start_that_could_not_be_put_leaves_the_newer_state(
    one: Machine, broken: list[str]
) -> None:
    """Neither failed starts nor their number make this machine's state one of another's."""
    with one.run() as folder:
        save(folder, 1)
        broken.append("no answer")
        save(folder, 2)
    for _ in range(2):
        with pytest.raises(UserError, match="no answer"), one.run(resume="auto"):
            pass
    broken.clear()
    with one.run(resume="auto") as folder:
        assert weight(checkpoint.load(folder.last)) == 2
    assert weight(checkpoint.load(one.address / "last.pt")) == 2


def test_an_answer_that_was_lost_for_good_is_no_other_start(
    one: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """last.json was put, but this process does not know it."""

    def unheard(path: Url, *args: Any, **how: Any) -> Any:
        PUT(path, *args, **how)
        raise UserError(f"{path}: no answer")

    with one.run() as folder:
        save(folder, 1)
        monkeypatch.setattr(
            pointer,
            "put",
            lambda p, *a, **h: (unheard if p.name == "last.json" else PUT)(p, *a, **h),
        )
        save(folder, 2)
        monkeypatch.setattr(pointer, "put", PUT)
        save(folder, 3)
        folder.finish(state_after(3), None)
    assert weight(checkpoint.load(one.address / "last.pt")) == 3
    assert generations(one.address) == [3, 2]
