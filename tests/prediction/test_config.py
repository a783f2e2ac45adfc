"""The command line of predict.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from unet_ddp.errors import UserError
from unet_ddp.prediction.config import PredictConfig, parse_predict
from unet_ddp.prediction.predictor import OVERLAP


def test_defaults() -> None:
    config = parse_predict(["a.png"])
    assert config == PredictConfig(("a.png",))
    assert (config.tta, config.mask_format, config.probabilities) == ("none", "auto", "none")
    assert (config.rle_order, config.device, config.overlap) == ("rows", "auto", 100 * OVERLAP)
    assert not (config.overlay or config.overwrite or config.skip_existing)
    assert config.model == () and config.output is config.tile is config.threshold is None


def test_the_help_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_predict(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: predict.py [-h]")
    assert "--mask-format auto|png|tif" in text and "default: None" not in text


def test_short_flags_and_both_dashes() -> None:
    argv = [
        "a.png", "b.png", "-o", "out", "-s", "0.5", "-t", "0.3", "-b", "4", "--rle_order",
        "columns",
    ]  # fmt: skip
    config = parse_predict(argv)
    assert config.inputs == ("a.png", "b.png")
    assert (config.output, config.scale, config.threshold, config.batch_size) == (
        "out",
        0.5,
        0.3,
        4,
    )
    assert config.rle_order == "columns"


def test_after_model_what_can_be_no_model_is_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.pt").touch()
    names = ["a.pt", "run", "b.PTH", "c.onnx", "d.ckpt", f"file://{tmp_path}/run", "e.png", "f.pt"]
    config = parse_predict(["-m", *names])
    assert (config.model, config.inputs) == (tuple(names[:6]), ("e.png", "f.pt"))
    assert parse_predict(["x.png", "-m", "odd"]).model == (
        "odd",
    )  # the first is one, whatever it is
    config = parse_predict(["x.png", "-m", "odd", "y.png"])
    assert (config.model, config.inputs) == (("odd",), ("x.png", "y.png"))


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        ([], "--skip-existing"),
        (["--skip-existing"], "--skip-existing"),
        (["--rle", "l.csv"], "--skip-existing"),
        (["--rank", "r.csv"], "--overwrite"),
        (["--overwrite"], "--overwrite"),
    ],
)
def test_a_stopped_job_is_told_a_flag_that_goes_with_its_own(flags: list[str], advice: str) -> None:
    said = parse_predict(["p", *flags]).advice_if_stopped
    assert advice in said
    if advice not in flags:
        assert parse_predict(["p", *flags, advice]).inputs == ("p",)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a.png", "--batch-size", "0"], "--batch-size 0"),
        (["a.png", "--workers", "0"], "--workers 0"),
        (["a.png", "--overwrite", "--skip-existing"], "--overwrite and --skip-existing: use one"),
        (["a.png", "--rank", "r.csv", "--skip-existing"], "--rank and --skip-existing: use one"),
        (["a.png", "--mask-format", "jpg"], "--mask-format"),
        (["a.png", "--pseudo", "p"], "--pseudo.*; see predict.py --help"),  # dropped
    ],
)
def test_mistakes_name_the_flag(argv: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_predict(argv)
    assert parse_predict(["a.png", "--batch-size", "1", "--workers", "1"]).workers == 1
