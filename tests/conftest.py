"""Fixtures of all tests: image sets that they make themselves, and processes to run on."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tyro
from PIL import Image

from tests.object_store import MemoryBucket, ObjectStore, running_store
from tests.ranks import Ranks
from unet_ddp.extras.cloud import fetch_ahead
from unet_ddp.plugins.own import renew

# Networks are small here, and threads that wait for each other on a machine with other work wait long.
torch.set_num_threads(1)

NO_DEFAULT = tyro._singleton.MISSING_NONPROP
PROCESS_FIXTURES = {"ranks", "object_store"}

# In the environment, so that all processes of a session draw from the seed that is printed.
SEED = int(os.environ.setdefault("TEST_SEED", str(random.SystemRandom().randrange(1, 2**31))))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"random seed: {SEED} (set TEST_SEED to repeat)")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the processes to test with: several for a whole lane alone.

    Chosen tests start sooner in one. Thorough ones wait half of their time, for processes of their own
    and for time limits: two processes more than there are cores keep these busy.
    """
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS and not config.option.keyword
    cores = min(4, os.cpu_count() or 1)
    lanes = {"not thorough": cores, "thorough": cores + 2, "thorough and not release": cores + 2}
    return lanes.get(config.option.markexpr, 0) * whole


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from all tests, and from what they start, but with `-m gpu`.

    CUDA looks once, at its first use, so the choice is one for the whole session. CPUs compute in
    float32 on all machines.
    """
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored,
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup this one
    keep_parsers()


def keep_parsers() -> None:
    """Let tyro look at each class of settings once in a process: it takes most of a command's time.

    What it finds is frozen; the words of a command line are no part of it.
    """
    find, kept = tyro._parsers.ParserSpecification.from_callable_or_type, {}

    def find_once(kind: Any, *args: Any, **how: Any) -> Any:
        if args or how["intern_prefix"] or how["default_instance"] is not NO_DEFAULT:
            return find(kind, *args, **how)
        key = (kind, how["description"], how["prog_suffix"])
        if key not in kept:
            kept[key] = find(kind, **how)
        return kept[key]

    tyro._parsers.ParserSpecification.from_callable_or_type = find_once


def pytest_collection_finish() -> None:
    """Take what is imported out of garbage collection, which took a second each time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Do so again after each file: late in a session, a collection of all that it keeps is slow."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_sessionfinish() -> None:
    """Undo that: what is never freed, some libraries report at the exit."""
    gc.unfreeze()


@cache
def names_thorough(path: Path) -> bool:
    return b"thorough" in path.read_bytes()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files without thorough tests out of their lane, whose processes need not import them."""
    is_lane = config.option.markexpr.startswith("thorough")
    is_file = is_lane and collection_path.name.startswith("test_") and collection_path.is_file()
    return True if is_file and not names_thorough(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect GPU tests where no GPU is seen; mark the tests that start processes."""
    for item in items:
        if item.get_closest_marker("thorough") and not names_thorough(item.path):
            raise pytest.UsageError(f"{item.path}: name the marker thorough in the file itself")
        if not PROCESS_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.processes)
    if not torch.cuda.is_available():
        # By marker: the keywords have the names of folders too, and one may be called gpu.
        needs_gpu = [item for item in items if item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=needs_gpu)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    pool = Ranks()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def store_process() -> Iterator[ObjectStore]:
    with running_store() as store:
        yield store


@pytest.fixture
def object_store(
    store_process: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    """An S3 server that this process, and those it starts, find in their environment."""
    for name, value in store_process.environment.items():
        monkeypatch.setenv(name, value)
    yield store_process
    store_process.set_fault("none")


@pytest.fixture
def memory_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBucket]:
    """The bucket in the memory of this process: mutation testing takes the tests that have it."""
    bucket = MemoryBucket()
    bucket.take_place(monkeypatch)
    yield bucket
    fetch_ahead([])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """A test finds no modules of the user's own in the folder of one before it, in whatever order they run."""
    before = [*sys.path]
    result = yield
    sys.path[:] = before
    renew()
    return result


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees or touches the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def no_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks another machine for anything; what is under test would do so too."""
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def check(host: object) -> None:
        if str(host) not in ("127.0.0.1", "::1", "localhost", "None"):
            pytest.fail(f"{host} is another machine")

    def checked_connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple):  # else a path on this machine
            check(address[0])
        connect(self, address)

    def checked_look_up(host: Any, *args: Any, **how: Any) -> Any:
        check(host)
        return look_up(host, *args, **how)

    monkeypatch.setattr(socket.socket, "connect", checked_connect)
    monkeypatch.setattr(socket, "getaddrinfo", checked_look_up)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this process write no report, which takes half of a short one; see `call_train`."""
    monkeypatch.setattr("unet_ddp.extras.report.write.write_reports", lambda *args: None)


@pytest.fixture(scope="session")
def traced_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Exports trace each module once, in whichever process of the session."""
    from tests.exports import trace_once
    from unet_ddp.extras.onnx import tracing, whole_image

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "traced"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        for module in (tracing, whole_image):
            patch.setattr(module, "trace", partial(trace_once, folder))
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(SEED)


def make_pair(
    folder: Path,
    name: str,
    *,
    size: tuple[int, int] = (24, 32),
    values: tuple[int, int] = (0, 255),
    image_ending: str = ".png",
    mask_ending: str = ".png",
    seed: int = 0,
) -> tuple[Path, Path]:
    """An image (height, width) with a bright square on dark noise, and its mask."""
    random_ = np.random.default_rng([seed, *name.encode()])
    pixels = random_.integers(0, 90, (*size, 3), dtype=np.uint8)
    mask = np.full(size, values[0], np.uint8)
    top, left = random_.integers(2, size[0] // 2), random_.integers(2, size[1] // 2)
    square = (slice(top, top + 9), slice(left, left + 9))
    pixels[square] += 150
    mask[square] = values[1]
    image_path = folder / "imgs" / f"{name}{image_ending}"
    mask_path = folder / "masks" / f"{name}{mask_ending}"
    for path, array in ((image_path, pixels), (mask_path, mask)):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)
    return image_path, mask_path


def install_package(folder: Path, entry_points: str) -> None:
    """Write what an installation adds to a folder of modules: it is enough for Python to find them."""
    info = folder / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


@contextmanager
def another_user() -> Iterator[None]:
    """Context of a user whom permissions stop, where the tests run as root; skipped if that user can't import."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        files = pytest.__file__, __file__
        can_import = all(map(os.path.isfile, files))
        if can_import:
            yield
    finally:
        os.seteuid(before)
    if not can_import:
        pytest.skip("the packages are in a folder that no other user may enter")


def make_set(folder: Path, count: int = 10, **how: object) -> Path:
    """`count` pairs in `folder`/imgs and `folder`/masks."""
    for number in range(count):
        make_pair(folder, f"{chr(97 + number)}x", **how)  # type: ignore[arg-type]
    return folder


def data_flags(folder: Path) -> list[str]:
    """The flags that point train.py to a set made by `make_set`."""
    return ["--images", str(folder / "imgs"), "--masks", str(folder / "masks")]
