"""No command speaks to another machine."""

from __future__ import annotations

import importlib.util
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import data_flags, make_set
from tests.prediction.models import write_model
from tests.ranks import ROOT, call_main
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.data.labels import Labels

COMMANDS = """
import contextlib, sys, time
from unet_ddp.commands import predict, train
from unet_ddp.__main__ import main

def run(function, *argv):
    with contextlib.suppress(SystemExit):
        status = function(list(argv))
        assert not status, (argv, status)

data = sys.argv[1:]
run(train.main, *data, "--epochs", "1", "--workers", "0", "--encoder", "tu-resnet10t")
run(main, "export", "checkpoints/best.pt", "a.onnx")
run(predict.main, "imgs", "-o", "by_torch")
began = time.monotonic()
run(predict.main, "imgs", "-o", "by_onnx", "-m", "a.onnx", "--runtime", "onnxruntime")
run(predict.main, "imgs", "-o", "by_openvino", "-m", "a.onnx", "--runtime", "openvino")
run(main, "doctor", *data)
run(main, "evaluate")
run(main, "report")
time.sleep(max(0, began + 12 - time.monotonic()))  # onnxruntime reports after some seconds
"""
CALLS = "trace=connect,sendto,sendmsg,sendmmsg"
# An encoder of timm's, which may ask its hub. After one epoch the logits of a MobileNet are so large that its
# export differs from it by rounding alone, in one of four runs by more than export allows.


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_no_command_opens_a_socket_to_another_machine(tmp_path: Path) -> None:
    """The system's own record: libraries in C too, and questions to a name server."""
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    if importlib.util.find_spec("openvino") is None:  # not imported: it would report to its maker
        pytest.skip("the extra openvino is not installed")
    (tmp_path / "commands.py").write_text(COMMANDS)
    words = [sys.executable, "commands.py", *data_flags(make_set(tmp_path, 5))]
    done = subprocess.run(
        # The filter stops at these calls alone: a third of the time.
        ["strace", "-f", "--seccomp-bpf", "-qq", "-e", CALLS, "-o", "calls", *words],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in (
        "checkpoints/evaluation/report.html",
        "by_torch/ax_mask.png",
        "by_onnx/ax_mask.png",
        "by_openvino/ax_mask.png",
    ):
        assert (tmp_path / name).exists(), done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    outside = [call for call in calls if re.search(r"AF_INET", call) and "127.0.0.1" not in call]
    assert outside == []


@pytest.mark.parametrize("encoder", ["tu-hf-hub:somebody/payload", "tu-local-dir:payload"])
@pytest.mark.parametrize(
    ("program", "argv"),
    [
        ("predict", "imgs -m m.pt -o out"),
        ("unet_ddp.__main__", "evaluate --model m.pt --images imgs --masks masks"),
        ("unet_ddp.__main__", "export m.pt m.onnx"),
        ("train", "--images imgs --masks masks --load m.pt --workers 0"),
        ("train", "--images imgs --masks masks --encoder ENCODER --workers 0"),
    ],
)
def test_a_checkpoint_names_nobody_to_ask(
    tmp_path: Path, program: str, argv: str, encoder: str
) -> None:
    """Its encoder may be an address, of which timm would load code and weights."""
    make_set(tmp_path, 5)
    write_model(tmp_path / "m.pt", Labels((0, 255)))
    content = checkpoint.load(tmp_path / "m.pt")
    content["architecture"] |= {"model": "unet", "encoder": encoder}
    checkpoint.save(tmp_path / "m.pt", content)
    words = argv.replace("ENCODER", encoder).split()
    status, _, err = call_main(program, words, str(tmp_path))
    assert status == 2
    assert f" --model unet --encoder {encoder}: can't be built (neither" in err
    assert err.count("\n") == 1


def test_a_test_that_speaks_to_another_machine_fails() -> None:
    """All other tests rely on it: `no_other_machine` of conftest.py."""
    for speak in (
        lambda: socket.create_connection(("192.0.2.1", 80), timeout=1),
        lambda: socket.getaddrinfo("example.org", 80),
    ):
        with pytest.raises(pytest.fail.Exception, match="another machine"):
            speak()
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
