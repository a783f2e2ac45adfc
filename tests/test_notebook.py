"""`unet_ddp.train(...)` in a notebook: the shell's run, with a bar, and with the kernel's interrupt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import make_set
from tests.notebooks import run_notebook
from tests.ranks import ROOT, TRAIN, warm_python
from tests.test_api import assert_same_weights
from tests.training.test_own_loss import SOURCE

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")

pytestmark = [pytest.mark.thorough, pytest.mark.processes]

SETTINGS = """
    import unet_ddp

    settings = dict(
        images="imgs", masks="masks", width=2, epochs={epochs}, batch_size={batch}, nproc={nproc}, seed=3,
        workers=0, device="cpu", loss="parts:SquaredDice", exp_name="cells",
    )
    """


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return make_set(tmp_path)


def test_the_notebook_of_the_documentation_runs(folder: Path) -> None:
    text = (ROOT / "docs/tutorials/notebook.ipynb").read_text(encoding="utf-8")
    nbformat.validate(json.loads(text))
    notebook = nbformat.reads(text, as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    printed = run_notebook(folder, *code)
    assert "epoch 5: loss 0." in printed and "of the pixels" in printed, printed
    assert "checkpoints/notebook contains a run (best.pt): continue it with --resume" in printed
    assert (folder / "mask.png").exists() and (folder / "data/demo/imgs").exists()


@pytest.mark.parametrize("nproc", [1, pytest.param(2, marks=pytest.mark.release)])
def test_an_interrupted_run_of_cells_ends_as_that_of_the_shell(folder: Path, nproc: int) -> None:
    printed = run_notebook(
        folder,
        f"%%writefile parts.py\n{SOURCE}",
        SETTINGS.format(epochs=10, batch=2 // nproc, nproc=nproc),
        """
        try:
            unet_ddp.train(**settings)
        except KeyboardInterrupt:
            print("interrupted")
        """,
        """
        run = unet_ddp.train(**settings, resume=True)
        print("mask", run.predictor(device="cpu")("imgs/ax.png").to_image().size)
        """,
        """
        class Mine: ...
        try:
            unet_ddp.train(**{**settings, "loss": Mine})
        except unet_ddp.UserError as error:
            print("caught", error)
        """,
        interrupt_at="epoch 1: loss",
    )
    assert "interrupted\n" in printed and "mask (32, 24)" in printed, printed
    assert "\repoch 1/10: " in printed and "step/s" in printed
    assert (
        "caught loss: " in printed and "%%writefile parts.py" in printed and "parts:Mine" in printed
    )
    flags = ["--images=imgs", "--masks=masks", "--width=2", "--epochs=10", "--workers=0"]
    how = [f"--batch-size={2 // nproc}", f"--nproc={nproc}", "--seed=3", "--device=cpu"]
    own = ["--loss=parts:SquaredDice", "--exp-name=typed"]
    done = warm_python(folder, TRAIN, *flags, *how, *own)
    assert done.returncode == 0, done.stderr
    assert_same_weights(folder / "checkpoints/cells", folder / "checkpoints/typed")
