"""A process finds its place in the world from the variables that torchrun sets."""

from __future__ import annotations

import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from tests.ranks import python, warm_python
from unet_ddp.distributed import join as join_module
from unet_ddp.distributed.join import exit_with_error, join, leave, print_error
from unet_ddp.distributed.launch import run_on_all_ranks
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError

NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "MASTER_ADDR",
    "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
)  # fmt: skip


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Joins no group; returns what would be called."""
    calls: list[Any] = []
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: calls.append(("threads", count)))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("gpu", device)))
    monkeypatch.setattr(join_module, "usable_cores", lambda: 8)
    monkeypatch.setattr(
        join_module, "die_with_parent", lambda number: calls.append(("die", number))
    )
    monkeypatch.setattr(
        dist,
        "TCPStore",
        lambda host, port, **how: calls.append(("store", host, port, how)) or Tcp(),
    )
    monkeypatch.setattr(dist, "PrefixStore", lambda prefix, store: store.with_prefix(prefix))
    monkeypatch.setattr(
        dist,
        "new_group",
        lambda **how: calls.append(("new group", how)) or ("hosts" if "backend" in how else "own"),
    )
    monkeypatch.setattr(join_module, "separate_statistics", lambda g: calls.append(("sums", g)))
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **how: calls.append(("group", backend, how))
    )
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(dist, "all_gather_object", gather_processes)
    monkeypatch.setattr(join_module, "host_id", lambda: "here")
    monkeypatch.setattr(join_module, "wait_for_port", lambda *_: None)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=str(device.index))
    )
    return calls


def gather_processes(found: list[Any], own: Any) -> None:
    """Find rank 77 on this host, too, and another elsewhere."""
    found[:] = [("here", 77), own, ("there", 78)]


class Tcp(dict[str, bytes]):
    """A store in which the other ranks have a GPU each and are found, unless they say otherwise."""

    prefix = ""

    def with_prefix(self, prefix: str) -> Tcp:
        self.prefix = prefix
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        word, rank = key.split()
        other = "1" if word == "found" else f"host {rank}" * torch.cuda.is_available()
        return super().get(key, other.encode())


def set_environment(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    defaults = {"MASTER_ADDR": "node0", "MASTER_PORT": 29500}
    for name, value in {**defaults, **values}.items():
        monkeypatch.setenv(name, str(value))


def test_plain_python_is_a_world_of_one(calls: list[Any]) -> None:
    world = join("cpu", 5)
    assert (world.rank, world.size, world.local_rank, world.local_size) == (0, 1, 0, 1)
    assert (world.device, world.store, world.peers) == (torch.device("cpu"), None, ())
    assert calls == []


def test_torchrun_s_variables_give_the_place(
    monkeypatch: pytest.MonkeyPatch, calls: list[Any]
) -> None:
    set_environment(monkeypatch, RANK=5, WORLD_SIZE=8, LOCAL_RANK=1, LOCAL_WORLD_SIZE=4)
    world = join("cpu", 30)
    assert (world.rank, world.size, world.local_rank, world.local_size) == (5, 8, 1, 4)
    assert world.peers == (77,) and isinstance(world.store, Tcp)
    patience = timedelta(seconds=30)
    how = {"world_size": 8, "is_master": False, "timeout": patience, "multi_tenant": True}
    group = {
        "store": world.store,
        "rank": 5,
        "world_size": 8,
        "timeout": patience,
    }
    assert calls == [
        ("threads", 2),  # 8 cores for 4 processes
        ("die", signal.SIGTERM),
        ("store", "node0", 29500, how),
        ("group", "gloo", group),
        ("sums", None),
    ]


def test_an_elastic_torchrun_s_ranks_hear_of_lost_hosts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 warns, too, if a host that comes back would end the run."""
    place = {"WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    monkeypatch.setenv("PET_NNODES", "1:2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        with client, server.accept()[0]:
            for rank, run_id, is_heard in ((0, None, False), (1, "none", True), (0, "none", True)):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
                set_environment(monkeypatch, RANK=rank, **place)
                if run_id is not None:
                    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
                    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
                    monkeypatch.setattr(join_module, "agree_on_attempt", lambda *place: "attempt")
                join("cpu", 30)
                assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == is_heard
                said = capsys.readouterr().err
                assert ("a host that comes back will end the run" in said) is (
                    is_heard and rank == 0
                )


@pytest.mark.parametrize(
    ("threads", "local_size", "expected"),
    [(None, 4, [2]), ("1", 3, [2]), ("1", 16, [1]), ("2", 4, []), (None, 1, [])],
)
def test_ranks_share_the_cores_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    calls: list[Any],
    threads: str | None,
    local_size: int,
    expected: list[int],
) -> None:
    set_environment(monkeypatch, RANK=0, WORLD_SIZE=16, LOCAL_WORLD_SIZE=local_size)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    join("cpu", 5)
    assert [call[1] for call in calls if call[0] == "threads"] == expected


WHOLE = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("count", range(1, 15))
def test_half_of_the_variables_is_a_mistake(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """All 16 choices but none and all; an address alone, as a cluster may export it, is no rank."""
    chosen = {name: text for bit, (name, text) in enumerate(WHOLE.items()) if count >> bit & 1}
    for name, text in chosen.items():
        monkeypatch.setenv(name, text)
    if not {"RANK", "WORLD_SIZE"} & chosen.keys():
        assert join("cpu", 5).store is None
        return
    with pytest.raises(UserError) as error:
        join("cpu", 5)
    missing = ", ".join(name for name in WHOLE if name not in chosen)
    first = next(iter(chosen))
    assert str(error.value).startswith(f"{first} is set, but not {missing}: start with torchrun")
    assert str(error.value).endswith(
        f"or unset {', '.join(n for n in chosen if n in ('RANK', 'WORLD_SIZE'))}"
    )


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_a_variable_that_is_set_to_nothing_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As an unset variable that a container's settings hand on."""
    monkeypatch.setenv(name, "")
    with pytest.raises(UserError, match=f"^{name} is set, but empty: .*unset {name}$"):
        join("cpu", 5)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RANK", "x"), ("RANK", "2"), ("RANK", "-1"), ("RANK", "1.0"), ("WORLD_SIZE", "0"),
        ("WORLD_SIZE", "two"), ("LOCAL_RANK", "2"), ("LOCAL_RANK", ""), ("LOCAL_WORLD_SIZE", "3"),
        ("LOCAL_WORLD_SIZE", "0"), ("MASTER_PORT", "x"), ("MASTER_PORT", "65536"),
    ],
)  # fmt: skip
def test_variables_that_can_not_be_are_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    set_environment(monkeypatch, RANK=1, WORLD_SIZE=2)
    monkeypatch.setenv(name, text)
    with pytest.raises(UserError) as error:
        join("cpu", 5)
    assert f"{name}={text}" in str(error.value) and "torchrun" in str(error.value)
    with pytest.raises(SystemExit) as stop:
        exit_with_error(error.value)  # on any rank: there is no rank 0 to speak for it
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"error: {error.value}\n"


def test_a_store_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise dist.DistNetworkError("refused\nException raised from connect")

    monkeypatch.setattr(dist, "TCPStore", unreachable)
    set_environment(monkeypatch, RANK=1, WORLD_SIZE=2)
    with pytest.raises(SystemExit) as stop:
        run_on_all_ranks(lambda *_: 0, None, nproc=1, device="cpu", timeout=5)
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "error: MASTER_ADDR=node0 MASTER_PORT=29500: rank 1 of 2 does not find the others there (refused); "
        "use the address of rank 0's host, which this host must reach, and a port that is free there, or unset RANK, "
        "WORLD_SIZE if this process is alone\n"
    )
    with pytest.raises(SystemExit) as stop:
        exit_with_error(UserError("a mistake that no rank 0 can say"))
    assert stop.value.code == 2
    assert capsys.readouterr().err == "error: a mistake that no rank 0 can say\n"


def test_a_rank_without_a_rank_0_ends_in_one_line(tmp_path: Path) -> None:
    """In a shell or a pod that has the variables of another run: torch would try twice and show C++ frames."""
    script = tmp_path / "program.py"
    script.write_text(
        "from unet_ddp.distributed.launch import run_on_all_ranks\n"
        "run_on_all_ranks(print, None, nproc=1, device='cpu', timeout=0.3)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = warm_python(tmp_path, str(script), **place)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and "refused" in line
    assert line.endswith("or unset RANK, WORLD_SIZE if this process is alone")


def test_without_a_local_size_all_processes_are_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_environment(monkeypatch, RANK=1, WORLD_SIZE=2)
    world = join("cpu", 5)
    assert (world.local_rank, world.local_size) == (0, 2)


@pytest.mark.parametrize("values", [{"RANK": 0}, {"RANK": 1}])
def test_rank_0_hosts_a_store_that_is_new(
    monkeypatch: pytest.MonkeyPatch, calls: list[Any], values: dict[str, Any]
) -> None:
    set_environment(monkeypatch, **{"WORLD_SIZE": 2, **values})
    assert isinstance(join("cpu", 5).store, Tcp)
    (store,) = (call for call in calls if call[0] == "store")
    assert store[3]["is_master"] is (values["RANK"] == 0)


def test_the_launcher_s_store_has_keys_of_each_attempt(
    monkeypatch: pytest.MonkeyPatch, calls: list[Any]
) -> None:
    agreed: list[Any] = []
    monkeypatch.setattr(
        join_module, "agree_on_attempt", lambda *args: agreed.append(args[1:]) or "attempt 4"
    )
    set_environment(
        monkeypatch, RANK=0, WORLD_SIZE=2, LOCAL_WORLD_SIZE=1, TORCHELASTIC_USE_AGENT_STORE="True"
    )
    store: Any = join("cpu", 500).store
    assert store.prefix == "attempt 4" and agreed == [(0, 2, 500)]
    (made,) = (call for call in calls if call[0] == "store")
    assert made[3]["is_master"] is False
    assert made[3]["timeout"] == timedelta(seconds=30)  # to find it: it exists
    assert store.timeout == timedelta(seconds=500)


def test_gpus_use_nccl(monkeypatch: pytest.MonkeyPatch, calls: list[Any]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    set_environment(monkeypatch, RANK=1, WORLD_SIZE=2, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2)
    gpu = torch.device("cuda", 1)
    world = join("auto", 5)
    assert world.device == gpu
    assert calls[0] == ("gpu", gpu)
    assert "start 1" in world.store  # they are compared: NCCL would end in a traceback
    _, backend, how = calls[-4]
    assert backend == "nccl" and how["device_id"] == gpu
    # The hosts' group gives up first: what NCCL's watchdog does is no line of ours.
    assert calls[-1] == ("new group", {"backend": "gloo", "timeout": timedelta(seconds=5)})
    assert how["timeout"] == timedelta(seconds=10)
    # Batch norm's sums do not queue behind gradients in one communicator.
    assert calls[-3:-1] == [("new group", {"timeout": how["timeout"]}), ("sums", "own")]
    assert world.hosts == "hosts"
    set_environment(monkeypatch, WORLD_SIZE=3, LOCAL_WORLD_SIZE=3)
    with pytest.raises(UserError, match="3 processes, but this machine has 2"):
        join("auto", 5)


@pytest.mark.parametrize(
    ("hosts", "gpus", "pair"),
    [
        ("aaa", "123", None),
        ("aba", "121", "0 and 2"),
        ("aaa", "122", "1 and 2"),
        ("aab", "1-2", "rank 0 has a GPU, rank 1 has none"),
        ("abc", "111", None),  # containers of one GPU, which NCCL takes for machines
    ],
)
def test_ranks_that_see_one_and_the_same_gpu_end_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hosts: str,
    gpus: str,
    pair: str | None,
) -> None:
    """Tasks of `srun --gres=gpu:1`: each picks the only GPU that it sees."""
    store: Any = dist.HashStore()
    place = threading.local()
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda d: SimpleNamespace(uuid=gpus[place.rank])
    )
    monkeypatch.setattr(dist, "TCPStore", lambda *_, **__: store)
    monkeypatch.setattr(socket, "gethostname", lambda: hosts[place.rank])
    monkeypatch.setattr(join_module, "read_place", lambda: (place.rank, 3, 0, 1))
    monkeypatch.setattr(
        join_module,
        "pick_device",
        lambda *_: torch.device("cpu" if gpus[place.rank] == "-" else "cuda:0"),
    )
    set_environment(monkeypatch, RANK=0, GLOO_SOCKET_IFNAME="eth0")

    def check(rank: int) -> Any:
        place.rank = rank
        try:
            join("auto", 5)
        except SystemExit as end:
            return end.code
        return 0

    with ThreadPoolExecutor(3) as ranks:
        assert [*ranks.map(check, range(3))] == [2 if pair else 0] * 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (pair is not None)
    if pair and "-" in gpus:
        assert lines[0].startswith(f"error: {pair}") and "--device cpu" in lines[0]
    elif pair:
        assert lines[0].startswith(f"error: ranks {pair} have one GPU (a {gpus[int(pair[0])]})")
        assert "srun" in lines[0]


def test_the_store_s_host_leaves_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the others lose the store and end in a traceback; a dead one is not waited for longer."""
    waited: list[list[str]] = []

    class Store(Tcp):
        def wait(self, names: list[str], timeout: timedelta) -> None:
            waited.append(names)
            raise dist.DistStoreError("timed out")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for rank in range(2):
        store: Any = Store({f"start {1 - rank}": f"{socket.gethostname()} {rank}".encode()})
        monkeypatch.setattr(dist, "TCPStore", lambda *_, store=store, **__: store)
        set_environment(monkeypatch, RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2)
        with pytest.raises(SystemExit):
            join("cuda", 5)
        assert f"ended {rank}" in store
    assert waited == [["ended 0", "ended 1"], ["ended 0"]]


@pytest.mark.parametrize(
    ("address", "others", "interface", "local_size", "is_found"),
    [
        ("10.0.0.7", b"1", None, None, True),
        ("127.0.1.1", b"1", None, None, False),
        (None, b"1", None, None, False),
        (None, b"1", None, 1, False),
        (None, b"1", "eth0", None, True),
        ("10.0.0.7", b"0", None, None, False),  # what one rank finds holds for all
        (None, b"0", None, 2, True),  # ranks of one machine find each other unasked
    ],
)
def test_without_addresses_ranks_agree_through_nccl_and_say_so(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    address: str | None,
    others: bytes,
    interface: str | None,
    local_size: int | None,
    is_found: bool,
) -> None:
    """Without LOCAL_WORLD_SIZE there may be several machines, each with one rank."""

    def gethostbyname(name: str) -> str:
        if address is None:
            raise OSError("Name or service not known")
        return address

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(socket, "gethostbyname", gethostbyname)
    monkeypatch.setattr(dist, "TCPStore", lambda *_, **__: Tcp({"found 1": others}))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if interface:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    set_environment(monkeypatch, RANK=0, WORLD_SIZE=2)
    if local_size is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local_size))
    assert join("cuda", 5).hosts == ("hosts" if is_found else None)
    assert ("ranks agree through NCCL" in capsys.readouterr().err) is not is_found


@pytest.mark.parametrize(
    ("failed", "device", "expected"),
    [
        (False, "cpu", ["barrier", "destroy"]),
        (False, "cuda", ["barrier", "destroy"]),
        (True, "cpu", ["destroy"]),  # the others are in no barrier
        (True, "cuda", ["abort"]),
    ],
)
def test_a_group_is_left(
    monkeypatch: pytest.MonkeyPatch, failed: bool, device: str, expected: list[str]
) -> None:
    done: list[str] = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "barrier", lambda: done.append("barrier"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("destroy"))
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: done.append("abort"))
    monkeypatch.setattr(dist, "broadcast_object_list", lambda *_, **__: None)
    store = dist.HashStore()
    leave(World(), failed=failed)
    assert done == []
    leave(World(store=store, device=torch.device(device)), failed=failed)
    assert done == expected
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    leave(World(store=store), failed=failed)
    assert done == expected


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_rank_that_has_failed_ends_without_torch_s_abort(
    monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    """It is private, and NCCL may fail in it: the error that was printed stays the last line."""

    def fail() -> None:
        raise RuntimeError("NCCL Abort failed")

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", fail)
    if is_gone:
        monkeypatch.delattr(dist.distributed_c10d, "_abort_process_group")
    leave(World(store=dist.HashStore(), device=torch.device("cuda")), failed=True)


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux names threads there")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["prints first", "prints last"])
def test_torchrun_s_report_has_the_line_whichever_rank_ends_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[int, int]
) -> None:
    """Rank 1, which prints nothing, ends in the same second as rank 0, which has printed."""
    reports = [str(tmp_path / f"{rank}.json") for rank in range(2)]
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", reports[0])
    print_error(UserError("nowhere: not found"))
    failures = {rank: ProcessFailure(rank, 1 + rank, 2, reports[rank]) for rank in order}
    _, first = ChildFailedError("train.py", failures).get_first_failure()
    assert first.message["message"] == "nowhere: not found"


@pytest.mark.thorough
def test_no_thread_of_a_group_outlives_it(tmp_path: Path) -> None:
    """At Python's end a thread that lets a tensor go aborts the process, which has ended well."""
    script = """if True:
        from pathlib import Path
        from unet_ddp.distributed.join import join, leave

        world = join("cpu", 20)
        import torch._dynamo  # as an optimizer's first step does

        world.gather(1)
        threads = lambda: [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        before = threads()
        leave(world)
        print(len(before), *threads())
        """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "1"}
    done = python(tmp_path, "-c", script, **where)
    before, *after = done.stdout.split()  # nor does gloo print a line
    assert len(after) == int(before) - 3, done.stdout + done.stderr  # its three
