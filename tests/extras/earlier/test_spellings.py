"""Flags, recipes and saved settings of earlier versions: understood, and said in a line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unet_ddp.cli import parse_train, with_saved
from unet_ddp.cli.recipes import Scalar, read_settings
from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError
from unet_ddp.extras.earlier.spellings import translate_argv

EARLIER = [  # words as they were and as they are today, and a recipe as it was
    ("--no-amp", "--precision float32", "amp: false"),
    ("--amp --amp_dtype bfloat16", "--precision bfloat16", "amp_dtype: bfloat16"),
    ("--folds 5 --fold=2", "--fold 2/5", "fold: 2\nfolds: 5"),
    ("--max-steps 7", "--stop-after 7", "max-steps: 7"),
    ("--max-epochs=3", "--stop-after 3epochs", "max_epochs: 3"),
    ("--dice-weight 2", "--loss-weights 2 1", "dice_weight: 2"),
    ("--cross-entropy-weight .5", "--loss-weights 1 .5", "cross_entropy_weight: 0.5"),
    ("--binary -e 1", "--mask-threshold 0 -e 1", "binary: true\nepochs: 1"),
    ("--label-smoothing 0.07", "--label-smoothing 7", "label_smoothing: 0.07"),
    ("--balance 1", "--balance 100", "balance: 1"),
]


@pytest.mark.parametrize(("earlier", "today", "text"), EARLIER)
def test_earlier_spellings_are_understood_with_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, earlier: str, today: str, text: str
) -> None:
    wanted = parse_train(today.split())
    assert not capsys.readouterr().out
    assert parse_train(earlier.split()) == wanted
    flag = today.split()[0]
    said = f": now {flag} "
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("note: --") and said in line
    path = str(tmp_path / "recipe.yaml")
    Path(path).write_text(text)
    config = parse_train(["--config", path])
    assert config.to_dict() == wanted.to_dict()
    assert config.launch.stop_after == wanted.launch.stop_after
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"note: {path}: --") and said in line
    saved = {key.replace("-", "_"): each.value if isinstance(each, Scalar) else each
             for key, each in read_settings(path).items()}  # fmt: skip
    assert with_saved(TrainConfig(), saved).to_dict() == wanted.to_dict()
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--no-amp --precision float32", "--precision and --amp are one setting: use one"),
        ("--folds 5", "--fold and --folds are now one flag: --fold 1/5 is the first of five"),
        ("--fold 2", "--fold and --folds are now one flag: --fold 1/5 is the first of five"),
        ("--max-steps 3 --max-epochs 1", "--max-steps and --max-epochs are now one flag, --stop-"),
        ("--no-binary", "Unrecognized options: --no-binary; did you mean"),
    ],
)
def test_earlier_spellings_that_can_t_be_translated(argv: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(said)}"):
        parse_train(argv.split())


def test_an_earlier_spelling_keeps_its_place_among_words() -> None:
    """A flag that takes several values must not take the words after it."""
    argv = ["--model", "a.pt", "--overlap", "0.5", "photo.jpg", "--", "--overlap", "0.5"]
    words = translate_argv(argv, {"model", "overlap"})
    assert words == ["--model", "a.pt", "--overlap", "50.0", *argv[4:]]
    assert translate_argv(["--overlap", "small"], {"overlap"}) == ["--overlap", "small"]
