"""Hosts are compared at the start; the run is on rank 0's, and the others have no newer one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import make_pairs
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.config import DataConfig, LaunchConfig, OptimizationConfig, RunConfig, TrainConfig
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.splits import Split
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.extras.hosts import compare as compare_module
from unet_ddp.extras.hosts.compare import check_data, check_folders, check_hosts


class Hosts:
    """Worlds of one rank on each of some hosts, which are threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: str = "ab") -> None:
        self.names, self.items, self.local = names, [None] * len(names), threading.local()
        self.barrier = threading.Barrier(len(names), timeout=10)
        monkeypatch.setattr(compare_module.socket, "gethostname", lambda: self.names[self.rank])

    @property
    def rank(self) -> int:
        return self.local.rank  # type: ignore[no-any-return]

    def run(self, work: Any) -> list[Any]:
        """Return what `work(world, rank)` returns on each host, or its UserError."""
        with ThreadPoolExecutor(len(self.names)) as threads:
            return [*threads.map(lambda rank: self._attempt(work, rank), range(len(self.names)))]

    def _attempt(self, work: Any, rank: int) -> Any:
        self.local.rank = rank
        try:
            return work(Member(self, rank), rank)
        except UserError as error:
            return error


class Member(World):
    """One rank of them."""

    def __init__(self, hosts: Hosts, rank: int) -> None:
        host = hosts.names[rank]
        others = tuple(k for k, name in enumerate(hosts.names) if name == host and k != rank)
        super().__init__(rank, len(hosts.names), 0, len(others) + 1, peers=others)
        object.__setattr__(self, "meeting", hosts)

    def gather(self, item: Any) -> list[Any]:
        group: Hosts = self.meeting  # type: ignore[attr-defined]
        group.barrier.wait()
        group.items[self.rank] = item
        group.barrier.wait()
        return [*group.items]

    def on_main(self, work: Any) -> Any:
        return self.gather(work() if self.is_main else None)[0]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(monkeypatch)


CONFIG = TrainConfig()


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (replace(CONFIG, optimization=OptimizationConfig(learning_rate=0.5)), "--learning-rate is 0.5 on b, but 0.001 on a (rank 0): start the same program"),
        (replace(CONFIG, data=DataConfig(classes=3)), "--classes is 3 on b, but None on a"),
        (replace(CONFIG, launch=LaunchConfig(stop_after="7")), "--stop-after is 7 on b, but None on a"),
        (replace(CONFIG, launch=LaunchConfig(budget="1h")), "--budget is 1h on b, but None on a"),
        (replace(CONFIG, launch=LaunchConfig(resume="auto")), "--resume is True on b, but False on a"),
        (replace(CONFIG, data=DataConfig(images="x", masks="y"), run=RunConfig(checkpoints="z")), None),
        (replace(CONFIG, launch=LaunchConfig(workers=7, rescue_dir="/tmp", cache=True)), None),
        (replace(CONFIG, launch=LaunchConfig(config="a", device="cpu", timeout=9, profile=True)), None),
    ],
)  # fmt: skip
def test_settings_that_change_the_result_are_the_same_everywhere(
    hosts: Hosts, other: TrainConfig, line: str | None
) -> None:
    outcomes = hosts.run(lambda world, rank: check_hosts([CONFIG, other][rank], [], world))
    assert len({str(outcome) for outcome in outcomes}) == 1
    assert outcomes[0] is None if line is None else str(outcomes[0]).startswith(line)


@pytest.mark.parametrize("name", ["unet_ddp", "torch", "numpy", "pillow", "albumentations"])
def test_the_program_is_the_same_everywhere(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    if name == "unet_ddp":  # of one version, but with a changed file

        class Program:
            __version__ = "1"
            __file__ = property(lambda self: str(tmp_path / hosts.names[hosts.rank] / "a.py"))

        for host in hosts.names:
            (tmp_path / host).mkdir()
            (tmp_path / host / "b.py").write_text(host)
        monkeypatch.setattr(compare_module, "unet_ddp", Program())
    else:
        before = compare_module.version
        monkeypatch.setattr(
            compare_module, "version", lambda n: f"1.{hosts.rank}" if n == name else before(n)
        )
    first, second = hosts.run(lambda world, rank: check_hosts(CONFIG, [], world))
    assert str(first) == str(second) and str(first).startswith(f"{name} is ")
    said = {"unet_ddp": "(3e23e816) on b, but 1 (ca978112) on a"}  # sha256 of "b" and of "a"
    assert said.get(name, "1.1 on b, but 1.0 on a") in str(first)


def test_data_is_the_same_everywhere(hosts: Hosts, tmp_path: Path) -> None:
    """Each host looks at its own files."""
    pairs = [make_pairs("abc", tmp_path / name) for name in hosts.names]
    splits = [Split(each[:2], each[2:], "how") for each in pairs]
    for pair in [*pairs[0], *pairs[1]]:
        pair.image.parent.mkdir(parents=True, exist_ok=True)
        pair.mask.parent.mkdir(parents=True, exist_ok=True)
        pair.image.write_bytes(b"12")
        pair.mask.write_bytes(b"1")

    def compare() -> list[Any]:
        return hosts.run(lambda world, rank: check_data(splits[rank], {}, world))

    assert compare() == [None, None]
    image, mask = pairs[1][0].image, pairs[1][1].mask
    for change, said in (
        (mask.unlink, "5 of 6 files ("),
        (lambda: mask.write_bytes(b"2"), "6 of 6 files ("),  # as large as rank 0's
        (lambda: image.write_bytes(b"123"), "6 of 6 files ("),
    ):
        change()
        first, second = compare()
        assert str(first) == str(second)
        assert str(first).startswith(f"the data is {said}")
        assert "on b, but 6 of 6 files (" in str(first)


def test_one_host_looks_at_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_module, "measure_files", lambda split: pytest.fail("looked"))
    hosts = Hosts(monkeypatch, "aa")
    split = Split(make_pairs("ab"), Pairs(), "how")
    assert hosts.run(lambda world, rank: check_data(split, {}, world)) == [None, None]


# -- the run's folder -----------------------------------------------------------------------------


def save(folder: Path, epoch: int, step: int, *launchers: str) -> None:
    folder.mkdir(exist_ok=True)
    position = {"epoch": epoch, "step": step}
    content = {
        "position": position,
        "launchers": list(launchers),
        "resume": None,
        "x": torch.ones(3),
    }
    checkpoint.save(folder / "last.pt", content, keep_previous=True)


def check(
    hosts: Hosts,
    folder: Path,
    *launchers: str,
    resume: str | None = "auto",
    places: list[str] | None = None,
) -> list[Any]:
    """Check the hosts' folders, a, b and c below `folder`; the same on every rank."""
    places = places or [str(folder / name) for name in hosts.names]

    def work(world: World, rank: int) -> None:
        run = RunConfig(checkpoints=places[rank])
        check_folders(TrainConfig(run=run, launch=LaunchConfig(resume=resume)), launchers, world)

    outcomes = hosts.run(work)
    assert len({type(outcome) for outcome in outcomes}) == 1
    return outcomes


@pytest.mark.parametrize(
    ("states", "newest"),
    [
        ([None, (1, 2), None], "b"),
        ([None, (1, 2), (0, 9)], "b"),
        ([None, (1, 2), (2, 0)], "c"),
        ([(0, 5), (1, 0), (1, 0)], "b"),
        ([(1, 0), (1, 0), (0, 5)], None),  # a shared folder, or an older state
        ([None, (0, 0), None], "b"),
        ([(1, 0), None, None], None),
        ([None, None, None], None),
    ],
)
def test_rank_0_has_the_newest_state_or_no_host_begins(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    states: list[tuple[int, int] | None],
    newest: str | None,
) -> None:
    hosts = Hosts(monkeypatch, "abc")
    for name, state in zip("abc", states, strict=True):
        if state is not None:
            save(tmp_path / name, *state, "torchrun 1")
    for resume, launchers in (("auto", []), (None, ["torchrun 1", "job"])):
        lines = [str(error) for error in check(hosts, tmp_path, *launchers, resume=resume)]
        said = f"{tmp_path}/{newest}: the run after "  # the folder of that host
        assert [
            line.startswith(said) and f" steps is on {newest}, not on a (rank 0)" in line
            for line in lines
        ] == [newest is not None] * 3
    # Another run's; or rank 0 has said which file.
    for resume in (None, "some/last.pt"):
        assert check(hosts, tmp_path, "torchrun 2", resume=resume) == [None] * 3


def test_what_is_no_state_of_the_run_is_not_asked(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a", 1, 1)
    save(tmp_path / "b", 2, 1)
    (tmp_path / "b" / "last.pt").write_bytes(b"corrupt")
    assert check(hosts, tmp_path) == [None, None]
    for place in ("s3://bucket/run", str(tmp_path / "new")):  # of rank 0: in storage, or not
        outcomes = check(hosts, tmp_path, places=[place, str(tmp_path / "a")])
        assert (outcomes == [None, None]) is place.startswith("s3:")


@pytest.mark.parametrize("is_shared", [True, False])
def test_hosts_that_come_and_go_share_the_folder(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    monkeypatch.setattr(compare_module, "is_elastic", lambda: hosts.rank == 1)
    if is_shared:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").symlink_to("a")
    for outcome in check(hosts, tmp_path, resume=None):
        assert (
            outcome is None
            if is_shared
            else " on b is not that on a (rank 0), but with --nnodes=MIN" in str(outcome)
        )
    assert [*tmp_path.rglob(".shared*")] == []
