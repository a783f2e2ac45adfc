"""An image in another scale than the training images' is a warning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.prediction.models import write_model
from tests.prediction.test_predict import run
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.data.labels import Labels
from unet_ddp.prediction import scale_warning

PHOTO = np.random.default_rng(0).beta(1.5, 3, (40, 40, 3)) * 255


def write_trained(folder: Path, dtype: str, high: float, mean: float) -> None:
    """Write a network that was trained on values from 0 to `high`."""
    path = folder / "checkpoints" / "best.pt"
    write_model(path, Labels((0, 255)), scale=1)
    content = checkpoint.load(path)
    trained = {"dtype": dtype, "low": 0.0, "high": high, "mean": [mean / high] * 3}
    content["preprocessing"] |= trained
    checkpoint.save(path, content)


@pytest.mark.parametrize(
    ("dtype", "high", "mean", "factor", "says"),
    [
        ("float32", 255.0, 85, 1 / 255, "values {}; the training images' are 0 to 255"),
        ("float32", 1.0, 0.3, 1, "values {}; the training images' are 0 to 1"),
        ("uint16", 65_535.0, 20_000, 1, "values {}; the training images' are 0 to 65535"),
        ("uint16", 255.0, 85, 257, "values {}; the training images' are 0 to 255"),
        ("float32", 255.0, 85, 1, ""),
        ("float32", 255.0, 85, 1 / 10, ""),
        ("float32", 60.0, 5, 1 / 255, ""),  # bright spots on black
        ("uint16", 65_535.0, 20_000, 1 / 10, ""),  # a dark place
        ("uint16", 4095.0, 1000, 1, ""),
        ("uint8", 255.0, 85, 1 / 200, ""),
    ],
)
def test_another_scale_is_a_warning_once(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    dtype: str,
    high: float,
    mean: float,
    factor: float,
    says: str,
) -> None:
    write_trained(here, dtype, high, mean)
    image = (PHOTO * factor).astype(dtype)
    for name in "abc":
        np.save(here / f"{name}.npy", image)
    for flags in ([], ["--tile", "16"], ["--batch-size", "2"]):
        assert run("a.npy", "b.npy", "c.npy", "--workers", "1", "--overwrite", *flags) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if "values" in line]
        values = says.format(f"{image.min():g} to {image.max():g}")
        assert lines == [f"warning: a.npy: {values}: save it in their scale"] * bool(says)


def test_what_is_read_in_bands_is_not_looked_at(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_trained(here, "float32", 255, 85)
    np.save(here / "a.npy", (PHOTO / 255).astype("float32"))
    monkeypatch.setattr(scale_warning, "STREAMED", 40 * 40)
    assert run("a.npy") == 0
    assert "values" not in capsys.readouterr().out
