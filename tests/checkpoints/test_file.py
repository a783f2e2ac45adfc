"""Checkpoint files: whole or not at all, and never run as code."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch._subclasses import fake_tensor

from tests.conftest import data_flags, make_set
from tests.operations import Operations
from tests.ranks import Ranks, call_main
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.checkpoints.file import copy_to_host, find_not_finite, load, load_or_previous, save
from unet_ddp.checkpoints.weights import read_model
from unet_ddp.errors import UserError
from unet_ddp.network.unet import UNet


class _Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def plant_code(path: Path, harm: Path, how: str) -> None:
    """Write a checkpoint whose loading would make the folder `harm`."""
    if how == "pickle":
        path.write_bytes(pickle.dumps({"model": _Hostile(harm)}))
    else:
        torch.save({"model": _Hostile(harm)}, path, _use_new_zipfile_serialization=how == "zip")


@pytest.mark.parametrize("how", ["zip", "legacy", "pickle"])
def test_code_in_a_checkpoint_is_never_run(tmp_path: Path, how: str) -> None:
    path, harm = tmp_path / "x.pt", tmp_path / "harm"
    plant_code(path, harm, how)
    with pytest.raises(UserError, match=r"x\.pt: refused|x\.pt: no checkpoint"):
        read_model(path)
    assert not harm.exists()


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x89PNG\r\n", b"PK\x03\x04", b"\x80\x02."])
def test_another_file_is_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.pt: .*no checkpoint"):
        checkpoint.load(tmp_path / "x.pt")


def test_a_flipped_bit_is_found(tmp_path: Path, rng: np.random.Generator) -> None:
    """One of every third byte, and all that make a record a directory, which torch reads as zeros."""
    path, state = tmp_path / "x.pt", {"a": torch.arange(6.0), "b": torch.ones(2, dtype=torch.int64)}
    checkpoint.save(path, {"model": state})
    whole = path.read_bytes()
    bits = rng.integers(0, 8, len(whole)).tolist()
    flips = [(place, 1 << bits[place]) for place in range(bits[0] % 3, len(whole), 3)]
    record = -1
    while (record := whole.find(b"PK\1\2", record + 1)) >= 0:  # of zip's central directory
        flips.append((record + 38, 0x10))
    for place, bit in flips:
        damaged = bytearray(whole)
        damaged[place] ^= bit
        path.write_bytes(damaged)
        try:
            found = checkpoint.load(path)["model"]
        except UserError as error:
            assert "x.pt" in str(error)
        else:
            assert found.keys() == state.keys()
            assert all(torch.equal(found[name], state[name]) for name in state), (place, bit)


def test_safetensors_are_read_by_their_content(tmp_path: Path) -> None:
    """Whatever the file is called, as a copy of an object has another name."""
    state = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.float16)}
    for name in ("model.safetensors", "model.pt"):
        save_file(state, tmp_path / name)
        found = load(tmp_path / name)
        assert found.keys() == state.keys()
        assert all(torch.equal(found[key], state[key]) for key in state)
    whole = (tmp_path / "model.pt").read_bytes()
    for broken in (whole[:-1], whole[:12], b"\xff" * 8 + whole[8:], whole.replace(b"F32", b"F99")):
        (tmp_path / "x.pt").write_bytes(broken)
        with pytest.raises(UserError, match=r"x.pt: no checkpoint, or corrupt or truncated"):
            load(tmp_path / "x.pt")


def test_a_truncated_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    checkpoint.save(path, {"model": UNet(3, 2, width=2).state_dict()})
    whole = path.read_bytes()
    for length in (0, len(whole) // 2, int(len(whole) * 0.999999), len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError):
            checkpoint.load(path)


def test_a_small_file_can_not_grow_without_bound(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.pt", tmp_path / "packed.pt"
    torch.save({"model": torch.zeros(1_000_000)}, plain)
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out,
    ):
        for record in source.infolist():
            out.writestr(record.filename, source.read(record))
    assert packed.stat().st_size < 20_000
    with pytest.raises(UserError, match="compressed"):
        checkpoint.load(packed)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    save(tmp_path / "x.pt", {"model": {"w": torch.arange(3)}, "names": ["a"], "score": 0.5})
    content = load(tmp_path / "x.pt")
    assert content["format"] == checkpoint.FORMAT == 1
    assert content["model"]["w"].tolist() == [0, 1, 2]
    assert (content["names"], content["score"]) == (["a"], 0.5)


@pytest.mark.parametrize(
    "failing", [{os: "fsync"}, {os: "link", Path: "replace"}, {Path: "replace"}]
)
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: dict[object, str]
) -> None:
    path = tmp_path / "x.pt"
    save(path, {"value": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for place, name in failing.items():
        monkeypatch.setattr(place, name, full)
    with pytest.raises(OSError, match="No space"):
        save(path, {"value": 2}, keep_previous=True)
    monkeypatch.undo()
    assert load(path)["value"] == 1
    assert [found.name for found in tmp_path.iterdir()] == ["x.pt"]


@pytest.mark.parametrize("name", ["last.pt", "last.1.pt", "last.pt.1.tmp"])
def test_no_link_is_followed(tmp_path: Path, name: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "last.pt"
    save(path, {"value": 1})
    save(victim, {"value": 0})
    before = victim.read_bytes()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to(victim)
    save(path, {"value": 2}, keep_previous=True)
    assert victim.read_bytes() == before
    assert load(path)["value"] == 2 and not path.is_symlink()


def test_a_removed_folder_is_not_created_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        save(tmp_path / "gone" / "x.pt", {"value": 1})
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("has_links", [True, False])
def test_the_generation_before_is_kept_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "last.pt"
    for value in range(4):
        save(path, {"value": value}, keep_previous=value != 3)
    assert load(path)["value"] == 3
    assert load(tmp_path / "last.1.pt")["value"] == 1
    assert {found.name for found in tmp_path.iterdir()} == {"last.pt", "last.1.pt"}


def save_until_killed(path: Path, operation: int) -> bool:
    """Save in a child that is killed at its file operation of this number; True if it was."""
    child = os.fork()
    if child == 0:
        count, fsync = 0, os.fsync

        def hook(event: str, _: Any) -> None:
            nonlocal count
            if event not in ("open", "os.remove", "os.link", "os.rename"):
                return
            count += 1
            if count == operation:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted(handle: int) -> None:
            hook("open", None)
            fsync(handle)

        os.fsync = counted  # has no audit event
        sys.addaudithook(hook)
        try:
            save(path, {"n": 2, "w": torch.full((50_000,), 2.0)}, keep_previous=True)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_kill_at_any_operation_leaves_a_whole_file(tmp_path: Path) -> None:
    outcomes = []
    for operation in range(1, 30):
        folder = tmp_path / str(operation)
        folder.mkdir()
        path = folder / "last.pt"
        for value in (0, 1):
            save(path, {"n": value, "w": torch.full((50_000,), float(value))}, keep_previous=True)
        was_killed = save_until_killed(path, operation)
        content, source, warning = load_or_previous(path)
        assert (source, warning) == (path, "")
        assert bool((content["w"] == content["n"]).all())
        assert load(checkpoint.previous(path))["n"] <= content["n"]
        outcomes.append(content["n"])
        save(path, {"n": 3}, keep_previous=True)  # what the kill left does not disturb
        assert load(path)["n"] == 3
        if not was_killed:
            break
    assert outcomes == sorted(outcomes)
    assert outcomes[0] == 1 and outcomes[-1] == 2
    assert len(outcomes) > 8  # two opens, an unlink, a link, two renames, and the flushes


def test_a_corrupt_file_is_replaced_by_the_generation_before(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save(path, {"value": 1})
    assert load_or_previous(path)[0]["value"] == 1
    save(path, {"value": 2}, keep_previous=True)
    path.write_bytes(path.read_bytes()[:-100])
    content, source, warning = load_or_previous(path)
    assert content["value"] == 1 and source == tmp_path / "last.1.pt"
    assert warning.startswith(f"warning: {path}: no checkpoint, or corrupt or truncated")
    assert warning.endswith(f"; using {source} instead")
    path.unlink()
    assert load_or_previous(path)[0]["value"] == 1
    source.write_bytes(b"")
    with pytest.raises(UserError, match=r"last.pt: checkpoint not found"):
        load_or_previous(path)
    source.unlink()
    with pytest.raises(UserError, match=r"last.pt: checkpoint not found"):
        load_or_previous(path)


def test_a_list_is_no_checkpoint(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"x.pt: no checkpoint: it contains \[1, 2\]; use a file"):
        load(tmp_path / "x.pt")


def test_tensors_that_are_not_finite_are_found() -> None:
    good = {"a": torch.ones(2), "b": {"c": torch.tensor([1]), "n": 3}, "d": None}
    assert find_not_finite(good) is None
    for bad in (float("nan"), float("inf"), -float("inf")):
        content = {**good, "b": {**good["b"], "e": torch.tensor([0.0, bad])}}
        assert find_not_finite(content) == "b.e"
        assert find_not_finite({"model": content}) == "model.b.e"


def test_a_copy_is_in_host_memory_and_made_once() -> None:
    shared = torch.zeros(2, requires_grad=True)
    content = {"a": shared, "b": [shared, (shared, 3)], "c": {"name": "x"}}
    copied = copy_to_host(content)
    with torch.no_grad():
        shared += 1
    assert copied["a"].tolist() == [0, 0] and not copied["a"].requires_grad
    assert copied["b"][0] is copied["a"] and copied["b"][1][0] is copied["a"]
    assert isinstance(copied["b"][1], tuple) and copied["b"][1][1] == 3
    assert copied["c"] == {"name": "x"} and copied["c"] is not content["c"]


def test_copies_from_a_gpu_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together: an optimizer has hundreds of small tensors."""
    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(None))
    monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
    with fake_tensor.FakeTensorMode(), Operations() as operations:
        content = {name: torch.empty(3, device="cuda") for name in "abc"}
        copied = copy_to_host(content)
        copy_to_host({"a": torch.empty(3)})
    assert [tensor.device.type for tensor in copied.values()] == ["cpu"] * 3
    copies = operations.of(torch.ops.aten._to_copy.default)
    assert [how["non_blocking"] for _, how in copies] == [True] * 4
    assert len(waited) == 1


def test_a_storage_that_claims_to_be_huge_is_refused(tmp_path: Path) -> None:
    """A file says how large its tensors are; memory is used for what it contains."""
    path, grown = tmp_path / "x.pt", tmp_path / "grown.pt"
    torch.save({"model": torch.zeros(123_457)}, path)
    count, more = (b"J" + n.to_bytes(4, "little") for n in (123_457, 2_000_000_000))
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(grown, "w") as out:
        for record in source.infolist():
            data = source.read(record)
            if record.filename.endswith("data.pkl"):
                assert count in data
                data = data.replace(count, more)
            out.writestr(record.filename, data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"grown\.pt"):
        checkpoint.load(grown)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


@pytest.mark.parametrize("door", ["--resume", "--load", "predict"])
def test_no_door_runs_code(ranks: Ranks, tmp_path: Path, door: str) -> None:
    """From the command line, wherever a checkpoint goes in: one line, and nothing was run."""
    path, harm = tmp_path / "x.pt", tmp_path / "harm"
    plant_code(path, harm, "zip")
    make_set(tmp_path, 4)
    argv = ["imgs/ax.png", "--model", str(path)] if door == "predict" else [door, str(path)]
    program = "predict" if door == "predict" else "train"
    if door == "--load":
        argv += data_flags(tmp_path)
    ((status, out, err),) = ranks.run(1, call_main, program, argv, str(tmp_path))
    assert status == 2 and err.startswith("error: ") and err.count("\n") == 1, (out, err)
    assert "x.pt: refused" in err
    assert not harm.exists()


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes")]
)
def test_a_file_that_memory_does_not_hold_is_not_called_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    checkpoint.save(tmp_path / "x.pt", {"a": 1})
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(UserError, match=r"x\.pt: the memory does not suffice to read it"):
        checkpoint.load(tmp_path / "x.pt")


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_torchscript_file_is_called_so(tmp_path: Path) -> None:
    scripted: Any = torch.jit.script(torch.nn.Conv2d(3, 2, 1))
    scripted.save(tmp_path / "x.pt")
    for mapped in (False, True):
        with pytest.raises(
            UserError, match=r"x.pt: a TorchScript file; save the state_dict\(\) in the"
        ):
            load(tmp_path / "x.pt", mapped=mapped)
