"""Checkpoints: whole or not at all, from any program, and never run as code."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.conftest import SEED, data_flags, make_set
from tests.ranks import Ranks, call_main
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import RunError, UserError
from unet_ddp.network.architecture import Architecture
from unet_ddp.network.unet import UNet
from unet_ddp.prediction.backends import LoadedModel, TorchBackend
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.runs import checkpoint
from unet_ddp.runs.checkpoint import save
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.weights import infer_unet, load_weights, read_model, strip_prefixes

FORMS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "raw": dict,
    "module.": lambda s: {f"module.{k}": v for k, v in s.items()},
    "_orig_mod.": lambda s: {f"_orig_mod.{k}": v for k, v in s.items()},
    "module._orig_mod.": lambda s: {f"module._orig_mod.{k}": v for k, v in s.items()},
    "_orig_mod.module.": lambda s: {f"_orig_mod.module.{k}": v for k, v in s.items()},
    "module.module., n_averaged": lambda s: {
        "n_averaged": torch.tensor(3), **{f"module.module.{k}": v for k, v in s.items()}
    },
    "model": lambda s: {"model": s, "epoch": 3},
    "state_dict": lambda s: {"state_dict": {f"module.{k}": v for k, v in s.items()}},
    "model_state_dict": lambda s: {"model_state_dict": s, "loss": 0.1},
    "mask_values": lambda s: {**s, "mask_values": [0, 1]},
    "mask_values within": lambda s: {"model": {**s, "mask_values": [0, 255]}},
    "ours": lambda s: {
        "format": 1,
        "model": s,
        "architecture": Architecture("unet", 3, 2, None, 4, False).to_dict(),
        "labels": Labels((0, 255)).to_dict(),
        "preprocessing": Preprocessing(3, (0.0,) * 3, (1.0,) * 3, 0.5).to_dict(),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def network() -> UNet:
    """A network that is of two minds: each class wins half of a noisy picture's pixels."""
    torch.manual_seed(1)
    network = UNet(3, 2, width=4).eval()
    with torch.no_grad():
        logits = network(torch.rand(1, 3, 64, 64))
        network.outc.conv.bias[0] += (logits[:, 1] - logits[:, 0]).median()
    return network


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photo") / "x.png"
    pixels = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_every_form_predicts_the_same(
    network: UNet, photo: Path, tmp_path: Path, form: str
) -> None:
    path = tmp_path / "x.pth"
    torch.save(FORMS[form](network.state_dict()), path)
    found = Predictor.from_checkpoint(path, device="cpu")(photo).ids
    pixels, device = Preprocessing(3, (0.0,) * 3, (1.0,) * 3, 0.5), torch.device("cpu")
    backend = TorchBackend(network, pixels, device)
    plain = Predictor([LoadedModel(backend, Labels((0, 255)), pixels, None, [])], device=device)
    assert (found == plain(photo).ids).all()
    assert 0 < found.mean() < 1  # both classes: the comparison says something


def test_what_was_done_is_told(network: UNet, tmp_path: Path) -> None:
    torch.save(FORMS["_orig_mod.module."](network.state_dict()), tmp_path / "x.pth")
    model = read_model(tmp_path / "x.pth")
    told = "; ".join(model.notes)
    assert "_orig_mod.module." in told and "width 4, transposed" in told and "2 classes" in told


@pytest.mark.parametrize("bilinear", [False, True])
@pytest.mark.parametrize(("width", "channels", "classes"), [(4, 1, 2), (8, 3, 5)])
def test_shapes_tell_the_network(bilinear: bool, width: int, channels: int, classes: int) -> None:
    state = UNet(channels, classes, width=width, bilinear=bilinear).state_dict()
    assert infer_unet(state) == Architecture("unet", channels, classes, None, width, bilinear)


def test_one_sigmoid_output_is_the_same_as_two(photo: Path, tmp_path: Path) -> None:
    torch.manual_seed(2)
    network = UNet(3, 1, width=4).eval()
    with torch.no_grad():
        network.outc.conv.bias -= network(torch.rand(1, 3, 64, 64)).median()
    torch.save(network.state_dict(), tmp_path / "x.pth")
    predictor = Predictor.from_checkpoint(tmp_path / "x.pth", device="cpu", scale=1.0)
    pixels = torch.from_numpy(np.asarray(Image.open(photo)).copy()).permute(2, 0, 1)[None] / 255
    with torch.no_grad():
        expected = torch.sigmoid(network(pixels))[0, 0] > 0.5
    assert (predictor(photo).ids == expected.numpy()).mean() > 0.999


def test_a_submodule_called_module_is_not_damaged() -> None:
    state = {"module.a": torch.zeros(1), "b.module.c": torch.zeros(1)}
    assert strip_prefixes(state) == (state, [])


def test_mismatches_are_named(network: UNet) -> None:
    other = UNet(3, 5, width=4).state_dict()
    other["extra"] = torch.zeros(1)
    with pytest.raises(UserError) as caught:
        load_weights(network, other, Path("x.pt"))
    assert "outc.conv.weight is (5, 4, 1, 1) in the file, (2, 4, 1, 1)" in str(caught.value)
    assert "extra" in str(caught.value)


class _Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def plant_code(path: Path, harm: Path, how: str) -> None:
    """A checkpoint whose loading would make the folder `harm`."""
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
def test_what_is_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.pt: .*no checkpoint"):
        checkpoint.load(tmp_path / "x.pt")


def test_damage_is_found(network: UNet, tmp_path: Path, rng: np.random.Generator) -> None:
    """torch.load takes a flipped byte silently, as wrong weights."""
    path = tmp_path / "x.pt"
    checkpoint.save(path, {"model": network.state_dict()})
    sound = path.read_bytes()
    loaded_wrong = 0
    for place in rng.integers(0, len(sound), 50).tolist():
        damaged = bytearray(sound)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        try:
            state = checkpoint.load(path)["model"]
        except UserError as error:
            assert "x.pt" in str(error)
            continue
        expected = network.state_dict()
        loaded_wrong += any(not torch.equal(state[k], expected[k]) for k in expected)
    assert loaded_wrong == 0
    for length in (0, len(sound) // 2, int(len(sound) * 0.999999), len(sound) - 1):
        path.write_bytes(sound[:length])
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


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pt"
    checkpoint.save(path, {"value": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(path, {"value": 2})
    monkeypatch.undo()
    assert checkpoint.load(path)["value"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.pt"]


def test_a_kill_while_saving_leaves_the_old_file(tmp_path: Path) -> None:
    """The process is killed in the middle of the bytes: what lies there is the file before."""
    path = tmp_path / "x.pt"
    program = (
        "import os, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from unet_ddp.runs import checkpoint\n"
        "path = Path(sys.argv[1])\n"
        "checkpoint.save(path, {'n': 1, 'w': torch.zeros(300_000)})\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoint.save(path, {'n': 2, 'w': torch.zeros(300_000)})\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert checkpoint.load(path)["n"] == 1
    assert (tmp_path / "x.pt.tmp").exists()  # half a file, under another name
    checkpoint.save(path, {"n": 3})
    assert [p.name for p in tmp_path.iterdir()] == ["x.pt"]


SAVING = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from unet_ddp.runs import checkpoint
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.weights import infer_unet, load_weights, read_model, strip_prefixes
from unet_ddp.runs.checkpoint import save
from unet_ddp.runs.folder import RunFolder
torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
folder, dice = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
path = folder / "last.pt"
checkpoint.save(path, {"n": 0, "w": torch.zeros(200_000)})
newest, half = 0, 0
for kill in range(100):
    child = os.fork()
    if child == 0:
        while True:
            newest += 1
            checkpoint.save(path, {"n": newest, "w": torch.full((200_000,), float(newest))}, keep_previous=True)
    time.sleep(dice.uniform(0.001, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    half += path.with_name("last.pt.tmp").exists()
    content = checkpoint.load(path)
    assert content["n"] >= newest and bool((content["w"] == content["n"]).all())
    newest = content["n"]
print(newest, half)
"""


def test_a_hundred_kills_in_a_loop_of_saves(tmp_path: Path) -> None:
    """After each, the newest file is whole: the one before the kill, or a newer one."""
    words = [sys.executable, "-c", SAVING, str(tmp_path), str(SEED)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    saved, half = map(int, done.stdout.split())
    assert saved > 0 and half > 0  # saves were made, and kills fell into some


def test_a_storage_that_claims_to_be_huge_is_refused(tmp_path: Path) -> None:
    """A file says how large its tensors are; memory is taken for what it holds."""
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


@pytest.mark.parametrize("how", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("door", ["--resume", "--load", "predict"])
def test_no_door_runs_code(ranks: Ranks, tmp_path: Path, door: str, how: str) -> None:
    """From the command line, wherever a checkpoint goes in: one line, and nothing was run."""
    path, harm = tmp_path / "x.pt", tmp_path / "harm"
    plant_code(path, harm, how)
    make_set(tmp_path, 4)
    words = ["imgs/ax.png", "--model", str(path)] if door == "predict" else [door, str(path)]
    program = "predict" if door == "predict" else "train"
    if door == "--load":
        words += data_flags(tmp_path)
    ((status, out, err),) = ranks.run(1, call_main, program, words, str(tmp_path))
    assert status == 2 and err.startswith("error: ") and err.count("\n") == 1, (out, err)
    assert "x.pt" in err
    assert not harm.exists()


def test_what_is_written_beside_training_is_the_state_at_its_beginning(tmp_path: Path) -> None:
    """And in order: the next one waits for it, and so does the end."""
    weight = torch.zeros(3)
    gate = threading.Event()
    written: list[float] = []

    def slowly(path: Path, content: dict[str, Any], **how: bool) -> None:
        assert gate.wait(30)
        written.append(float(content["model"]["w"][0]))
        save(path, content, **how)

    with mock.patch("unet_ddp.runs.folder.save", slowly):
        with RunFolder(tmp_path, writes=True) as folder:
            folder.begin_write({"last.pt": {"model": {"w": weight}}}, "step 1")
            weight += 1  # a step of the optimizer, while the file is being written
            assert written == []
            gate.set()
            folder.begin_write({"last.pt": {"model": {"w": weight}}}, "step 2")
            weight += 1
        assert written == [0.0, 1.0]
    assert float(checkpoint.load(tmp_path / "last.pt")["model"]["w"][0]) == 1.0
    assert float(checkpoint.load(tmp_path / "last.1.pt")["model"]["w"][0]) == 0.0


def test_an_error_beside_training_is_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunFolder(tmp_path, writes=True) as folder:
        nan = torch.tensor([float("nan")])
        folder.begin_write({"last.pt": {"model": {"w": nan}}}, "step 1")
        with pytest.raises(RunError, match=r"model\.w holds nan"):
            folder.begin_write({"last.pt": {"model": {"w": torch.ones(1)}}}, "step 2")
        (tmp_path / "last.pt.tmp").mkdir()  # nothing can be written there
        folder.begin_write({"last.pt": {"model": {"w": torch.ones(1)}}}, "step 3")
        assert "can't be written" in folder.wait()
        folder.begin_write({"last.pt": {"model": {"w": torch.ones(1)}}}, "step 4")
    assert capsys.readouterr().err.count("can't be written") == 1  # an error came first


def test_overwriting_a_run_deletes_its_evaluation_and_nothing_of_others(tmp_path: Path) -> None:
    from unet_ddp.evaluation.tables import FILES

    for kept in ((), ("notes.txt", "old/scores.json")):
        evaluation = tmp_path / "evaluation"
        evaluation.mkdir()
        for name in ("best.pt", "report.html", *(f"evaluation/{name}" for name in FILES)):
            (tmp_path / name).write_text("of the run before")
        for name in kept:
            (evaluation / name).parent.mkdir(exist_ok=True)
            (evaluation / name).write_text("by hand")
        with RunFolder(tmp_path, writes=True) as folder:
            folder.clear()
        left = {str(path.relative_to(evaluation)) for path in evaluation.rglob("*.*")}
        assert left == set(kept)
        assert evaluation.exists() == bool(kept)
    assert {path.name for path in tmp_path.iterdir()} == {"evaluation"}
