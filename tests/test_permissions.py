"""What this user may not read is one line of every command, which names it: never a fault of a run, never "not found"."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import unet_ddp
from tests.conftest import another_user
from tests.extras.report.test_compare import write_run
from unet_ddp.__main__ import main
from unet_ddp.errors import UserError

COMMANDS = """
    predict d/x.png --device cpu -o o --model LOCK
    predict d/x.png --device cpu -o o --model LOCK/best.pt
    predict d/x.png --device cpu -o o --model d/m.pt LOCK
    predict LOCK --device cpu -o o --model d/m.pt
    predict LOCK/x.png --device cpu -o o --model d/m.pt
    evaluate --images d --masks d --device cpu -o o --model LOCK
    evaluate --images d --masks d --device cpu -o o --model LOCK/best.pt
    evaluate --images d --masks d --device cpu -o LOCK/o --model d/m.pt
    train --images d --masks d --device cpu --checkpoints LOCK --resume
    train --images d --masks d --device cpu --resume LOCK/last.pt
    train --images LOCK --masks d --device cpu --checkpoints o
    train --images d --masks LOCK --device cpu --checkpoints o
    train --images d --masks d --device cpu --checkpoints o --val-images LOCK --val-masks d
    train --images d --masks d --device cpu --checkpoints o --val-images d --val-masks LOCK
    train --images d --masks d --device cpu --checkpoints o --load LOCK
    train --images d --masks d --device cpu --checkpoints o --load LOCK/best.pt
    train --images LOCK/pack --device cpu --checkpoints o
    train --list LOCK/list.csv --device cpu --checkpoints o
    train --list d/list.csv --device cpu --checkpoints o
    train --images d --masks d --device cpu --checkpoints o --config LOCK/config.yaml
    pack --images LOCK --masks d -o o
    import LOCK/x.json --images d -o o
    import d/x.json --images LOCK -o o
    export LOCK o.onnx
    report LOCK
    compare LOCK d
    serve LOCK --port 0
"""


@pytest.fixture(params=["the folder", "the folder around it"])
def lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder with a file of each name that the commands read, which may not be entered."""
    with tempfile.TemporaryDirectory() as name:  # which another user may enter at all
        here = Path(name)
        here.chmod(0o777)
        monkeypatch.chdir(here)
        for folder in ("d", "closed/run"):
            Path(folder).mkdir(parents=True)
            for file in ("x.png", "x_mask.png"):
                Image.fromarray(np.zeros((8, 8), np.uint8)).save(f"{folder}/{file}")
            for file in ("best.pt", "last.pt", "m.pt", "config.yaml", "x.json", "list.csv"):
                Path(folder, file).touch()
        Path("d/list.csv").write_text("image,mask\n../closed/run/x.png,../closed/run/x_mask.png\n")
        closed = Path("closed/run" if request.param == "the folder" else "closed")
        closed.chmod(0)
        yield "closed/run"
        closed.chmod(0o755)


@pytest.mark.parametrize("command", [*map(str.strip, COMMANDS.strip().splitlines())])
def test_a_closed_path_is_a_mistake_in_one_line(
    command: str, lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "d/gone") != 0  # imports what it needs: the other user may not
    capsys.readouterr()
    with another_user():
        status = run(command, lock)
    err = capsys.readouterr().err
    assert status == 2 and err.startswith("error: ") and err.count("\n") == 1, err
    assert lock in err and "ermission" in err and "not found" not in err, err
    assert "rank" not in err and "--resume" not in err, err


def run(command: str, folder: str) -> int:
    try:
        return main(shlex.split(command.replace("LOCK", folder)))
    except SystemExit as end:
        return int(end.code or 0)


def test_python_says_so_too(lock: str) -> None:
    for model in (lock, f"{lock}/best.pt"):
        with another_user(), pytest.raises(UserError, match="no permission"):
            unet_ddp.Predictor.from_checkpoint(model)
        with another_user(), pytest.raises(UserError, match="no permission"):
            unet_ddp.evaluate(model, "d", "d", device="cpu")
    with another_user(), pytest.raises(UserError, match=f"{lock}: .*ermission"):
        unet_ddp.train(images="d", masks=lock, device="cpu", checkpoints="o")


def test_compare_calls_no_closed_file_damaged(capsys: pytest.CaptureFixture[str]) -> None:
    """It has other advice than to delete it."""
    with tempfile.TemporaryDirectory() as name:
        run_folder, page = Path(name, "a"), f"{name}/page.html"
        write_run(run_folder, [(0.5, 0.4, 1)])
        for folder in (Path(name), run_folder):
            folder.chmod(0o777)
        assert main(["compare", str(run_folder), "-o", page]) == 0
        Path(page).unlink()
        for file in ("run.json", "split.csv", "metrics.csv"):
            closed = run_folder / file
            closed.touch()
            closed.chmod(0)
            capsys.readouterr()
            with another_user():
                status = run(f"compare {run_folder} -o {page}", "")
            said = "".join(capsys.readouterr())
            assert f"{closed}: no permission to read it; make it readable" in said, said
            assert "damaged" not in said and "corrupt" not in said and "delete" not in said
            assert status == (2 if file == "metrics.csv" else 0)
            Path(page).unlink(missing_ok=True)
