"""The command line of predict.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from unet_ddp.errors import UserError
from unet_ddp.prediction.config import PredictConfig, parse_predict


def test_defaults() -> None:
    assert parse_predict(["a.jpg", "b"]) == PredictConfig(
        inputs=("a.jpg", "b"), output=None, model=(), scale=None, threshold=None, tta="none",
        tile=None, overlap=0.25, mask_format="png", overlay=False, probabilities="none", rle=None,
        rle_order="rows", polygons=None, overwrite=False, skip_existing=False, batch_size=None,
        workers=None, device="auto",
    )  # fmt: skip


def test_short_flags() -> None:
    config = parse_predict(
        ["a.jpg", "-o", "out", "-m", "a.pt", "-s", "0.5", "-t", "0.3", "-b", "1", "--workers", "1"]
    )
    assert config == PredictConfig(
        ("a.jpg",), "out", ("a.pt",), 0.5, 0.3, batch_size=1, workers=1
    )  # fmt: skip


def test_several_models_before_the_images(tmp_path: Path) -> None:
    """The first is a model whatever its name; from the next that is none on, they are images."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "best.pt").touch()
    names = ["any.name", "b.PT", "c.pth", "d.onnx", "e.ckpt", str(run), "f.jpg", "g.pt"]
    config = parse_predict(["--model", *names, "--overlay"])
    assert config.model == tuple(names[:6])
    assert config.inputs == ("f.jpg", "g.pt")
    assert config.overlay


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--batch-size 0", "--batch-size 0: must be 1 or more"),
        ("--workers 0", "--workers 0: must be 1 or more"),
        ("--overwrite --skip-existing", "--overwrite and --skip-existing: use one of them"),
        ("--bad", "Unrecognized options: --bad; see predict.py --help"),
    ],
)
def test_mistakes(argv: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_predict(["a.jpg", *argv.split()])
    assert str(caught.value) == message
