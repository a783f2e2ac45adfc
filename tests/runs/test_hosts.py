"""Hosts are compared at the start; the one with the newest checkpoint hands it over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import make_pairs
from unet_ddp.config import DataConfig, LaunchConfig, OptimizationConfig, RunConfig, TrainConfig
from unet_ddp.data.splits import Split
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.runs import checkpoint
from unet_ddp.runs import hosts as hosts_module
from unet_ddp.runs.hosts import compare_data, compare_hosts, fetch_run, mark_begun, write_fetched


class Hosts:
    """Worlds of one rank on each of some hosts; all do the same, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: str = "ab") -> None:
        self.names, self.items = names, [[] for _ in names]  # type: list[list[Any]]
        self.rank, self.call = 0, 0
        monkeypatch.setattr(hosts_module.socket, "gethostname", lambda: self.names[self.rank])

    def run(self, work: Any) -> list[Any]:
        """Return what `work(world, rank)` returns on each host, or its UserError."""
        self.items = [[] for _ in self.names]
        results: list[Any] = []
        for _ in range(10):  # a rank stops at the first item that another has not given yet
            results = [self._attempt(work, rank) for rank in range(len(self.names))]
            if not any(isinstance(result, WaitsError) for result in results):
                return results
        raise AssertionError("they wait for ever")

    def _attempt(self, work: Any, rank: int) -> Any:
        self.rank, self.call = rank, 0
        try:
            return work(Member(self, rank), rank)
        except (UserError, WaitsError) as error:
            return error


class WaitsError(Exception):
    pass


class Member(World):
    """One rank of them."""

    def __init__(self, hosts: Hosts, rank: int) -> None:
        super().__init__(rank, len(hosts.names))
        object.__setattr__(self, "_group", hosts)

    def gather(self, item: Any) -> list[Any]:
        group: Hosts = self._group  # type: ignore[attr-defined]
        mine, group.call = group.items[self.rank], group.call + 1
        mine[group.call - 1 :] = [item, *mine[group.call :]]
        if any(len(items) < group.call for items in group.items):
            raise WaitsError
        return [items[group.call - 1] for items in group.items]

    def on_rank(self, rank: int, work: Any) -> Any:
        return self.gather(work() if rank == self.rank else None)[rank]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(monkeypatch)


CONFIG = TrainConfig()


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (replace(CONFIG, optimization=OptimizationConfig(learning_rate=0.5)), "--learning-rate is 0.5 on b, but 0.001 on a (rank 0): start the same program"),
        (replace(CONFIG, data=DataConfig(classes=3)), "--classes is 3 on b, but None on a"),
        (replace(CONFIG, launch=LaunchConfig(max_steps=7)), "--max-steps is 7 on b, but None on a"),
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
    outcomes = hosts.run(lambda world, rank: compare_hosts([CONFIG, other][rank], world))
    assert len({str(outcome) for outcome in outcomes}) == 1
    assert outcomes[0] is None if line is None else str(outcomes[0]).startswith(line)


@pytest.mark.parametrize("name", ["unet_ddp", "torch", "numpy", "pillow", "albumentations"])
def test_the_program_is_the_same_everywhere(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "unet_ddp":  # of one version, but with a changed file
        monkeypatch.setattr(hosts_module, "_digest_program", lambda: f"digest{hosts.rank}")
    else:
        before = hosts_module.version
        monkeypatch.setattr(
            hosts_module, "version", lambda n: f"1.{hosts.rank}" if n == name else before(n)
        )
    first, second = hosts.run(lambda world, rank: compare_hosts(CONFIG, world))
    assert str(first) == str(second) and str(first).startswith(f"{name} is ")
    assert ("digest1) on b, but " if name == "unet_ddp" else "1.1 on b, but 1.0 on a") in str(first)


def test_data_is_the_same_everywhere(hosts: Hosts, tmp_path: Path) -> None:
    """Each host looks into its own files; here they change between the looks."""
    pairs = make_pairs("abc", tmp_path)
    split, file = Split(pairs[:2], pairs[2:], "how"), pairs[1].mask
    for pair in pairs:
        pair.image.write_bytes(b"12")
        pair.mask.write_bytes(b"1")

    def compare(world: World, rank: int, content: bytes | None) -> None:
        if rank == 1 and content is None:
            file.unlink()
        else:
            file.write_bytes(content if rank == 1 and content else b"1")
        compare_data(split, world)

    assert hosts.run(lambda world, rank: compare(world, rank, b"1")) == [None, None]
    for content, said in ((b"x" * 1234, "1,234 bytes"), (None, "No such file or directory")):
        first, second = hosts.run(lambda world, rank, c=content: compare(world, rank, c))
        assert str(first) == str(second)
        assert str(first).startswith(f"{file}: {said} on b, but 1 bytes on a (rank 0)")


def test_one_host_looks_at_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "_size", lambda file: pytest.fail(file))
    hosts = Hosts(monkeypatch, "aa")
    split = Split(make_pairs("ab"), [], "how")
    assert hosts.run(lambda world, rank: compare_data(split, world)) == [None, None]


# -- the checkpoint -------------------------------------------------------------------------------


def save(folder: Path, epoch: int, step: int, run: str | None = "r", *launchers: str) -> None:
    folder.mkdir(exist_ok=True)
    position = {"epoch": epoch, "step": step}
    content = {"position": position, "run": run, "launchers": list(launchers), "x": torch.ones(3)}
    checkpoint.save(folder / "last.pt", content, keep_previous=True)
    (folder / "metrics.csv").write_text(f"{epoch} {step}")


def fetch(
    hosts: Hosts,
    tmp_path: Path,
    *launchers: str,
    resume: str | None = "auto",
    overwrite: bool = False,
) -> list[dict[str, bytes] | UserError]:
    def work(world: World, rank: int) -> dict[str, bytes]:
        run = RunConfig(checkpoints=str(tmp_path / hosts.names[rank]))
        launch = LaunchConfig(resume=resume, overwrite=overwrite)
        return fetch_run(TrainConfig(run=run, launch=launch), launchers, world)

    return hosts.run(work)


@pytest.mark.parametrize(
    ("states", "source"),
    [
        ([None, (1, 2), None], 1),
        ([None, (1, 2), (0, 9)], 1),
        ([None, (1, 2), (2, 0)], 2),
        ([(0, 5), (1, 0), (1, 0)], 1),
        ([(1, 0), (1, 0), (0, 5)], None),  # a shared folder, or an older state
        ([None, None, None], None),
    ],
)
def test_the_newest_state_comes_to_rank_0(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    states: list[tuple[int, int] | None],
    source: int | None,
) -> None:
    hosts = Hosts(monkeypatch, "abc")
    for name, state in zip("abc", states, strict=True):
        if state is not None:
            save(tmp_path / name, *state)
    first, *others = fetch(hosts, tmp_path)
    assert others == [{}, {}]  # they write nothing
    if source is None:
        assert first == {}
        return
    folder = tmp_path / "abc"[source]
    assert first == {n: (folder / n).read_bytes() for n in ("metrics.csv", "last.pt")}
    write_fetched(tmp_path / "new", first)
    assert checkpoint.load(tmp_path / "new" / "last.pt")["position"]["epoch"] >= 0


def test_another_run_is_neither_replaced_nor_hidden(hosts: Hosts, tmp_path: Path) -> None:
    for run in ("another", None):  # None: of an earlier version, which may be another
        save(tmp_path / "a", 0, 5, run)
        save(tmp_path / "b", 3, 1)
        first, second = fetch(hosts, tmp_path)
        assert str(first).startswith("/") or "different runs" in str(first)
        assert "different runs on a (rank 0) and b, where it is after 3 epochs" in str(first)
        assert "different runs" in str(second)


def test_without_resume_only_a_restarted_run_is_looked_for(hosts: Hosts, tmp_path: Path) -> None:
    """The files of an earlier run on a host are not this one's."""
    save(tmp_path / "b", 3, 1, "r", "torchrun 1")
    assert fetch(hosts, tmp_path, "torchrun 2", resume=None) == [{}, {}]
    assert fetch(hosts, tmp_path, resume="some/last.pt") == [{}, {}]
    assert fetch(hosts, tmp_path, "torchrun 1", "torchrun 2", resume=None)[0] != {}


def test_survivors_of_the_host_with_the_checkpoints_do_not_begin_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each host knows that the run had begun; a new torchrun with --overwrite begins another one."""
    mine, job, hosts = "torchrun", "job", Hosts(monkeypatch, "abc")
    monkeypatch.setattr(hosts_module, "launcher_names", lambda: [mine, job])

    def mark(world: World, rank: int) -> None:
        run = RunConfig(checkpoints=str(tmp_path / hosts.names[rank]))
        mark_begun(TrainConfig(run=run), [mine, job], world)

    assert fetch(hosts, tmp_path, mine, resume=None) == [{}, {}, {}]  # a new run
    hosts.run(mark)
    hosts.names = "bc"
    for names in ([mine], [job], [mine, job]):
        first, second = fetch(hosts, tmp_path, *names, resume=None)
        for host, line in (("b", str(first)), ("c", str(second))):
            assert line.startswith(
                f"{tmp_path / host}: the run that this torchrun began has no checkpoint on b, c: start"
            )
    assert isinstance(fetch(hosts, tmp_path, mine, resume=None, overwrite=True)[0], UserError)
    assert fetch(hosts, tmp_path, "another", resume=None) == [{}, {}]
    # Another torchrun with the same --rdzv-id:
    monkeypatch.setattr(hosts_module, "launcher_names", lambda: ["another", job])
    assert isinstance(fetch(hosts, tmp_path, job, resume=None)[0], UserError)
    assert fetch(hosts, tmp_path, job, resume=None, overwrite=True) == [{}, {}]
    hosts = Hosts(monkeypatch, "b")  # one is left
    assert isinstance(fetch(hosts, tmp_path, job, resume=None)[0], UserError)
    save(tmp_path / "b", 1, 2, "r", job)
    assert fetch(hosts, tmp_path, job, resume=None) == [{}]


@pytest.mark.parametrize(
    ("local_rank", "place", "is_marked"),
    [(0, "run", True), (1, "run", False), (0, "s3://b/r", False)],
)
def test_a_host_is_marked_once_and_a_run_in_storage_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_rank: int, place: str, is_marked: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    world = World(local_rank, 4, local_rank, 2)
    mark_begun(TrainConfig(run=RunConfig(checkpoints=place)), ["torchrun"], world)
    assert [path.name for path in tmp_path.rglob(".*")] == [".begun"] * is_marked


def test_one_rank_of_a_host_reads_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_module, "_read_state", pytest.fail)
    config = TrainConfig(run=RunConfig(checkpoints=str(tmp_path)))
    assert fetch_run(config, [], World(1, 2, 1, 2)) == {}


def test_a_corrupt_file_is_no_state(hosts: Hosts, tmp_path: Path) -> None:
    save(tmp_path / "a", 3, 1)
    save(tmp_path / "b", 2, 1)
    (tmp_path / "a" / "last.pt").write_bytes(b"corrupt")
    assert fetch(hosts, tmp_path)[0] != {}


@pytest.mark.parametrize("place", ["s3://bucket/run", "elsewhere"])
def test_hosts_agree_on_who_looks_for_a_state(hosts: Hosts, tmp_path: Path, place: str) -> None:
    """Folders and files to resume may have other names on each host; none waits for another."""
    save(tmp_path / "b", 1, 2)

    def work(world: World, rank: int) -> dict[str, bytes]:
        run = RunConfig(checkpoints=[place, str(tmp_path / "b")][rank])
        resume = "auto" if rank or "://" in place else f"{place}/last.pt"
        return fetch_run(TrainConfig(run=run, launch=LaunchConfig(resume=resume)), [], world)

    assert hosts.run(work) == [{}, {}]


def test_a_corrupt_state_comes_with_the_one_before(hosts: Hosts, tmp_path: Path) -> None:
    save(tmp_path / "b", 1, 2)
    save(tmp_path / "b", 2, 0)
    last = tmp_path / "b" / "last.pt"
    last.write_bytes(last.read_bytes()[:-100])
    write_fetched(tmp_path / "a", fetch(hosts, tmp_path)[0])
    assert checkpoint.load_or_previous(tmp_path / "a" / "last.pt")[0]["position"]["epoch"] == 1
