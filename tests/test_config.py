"""The command line, recipes, and what wins over what."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from unet_ddp.cli import _names, parse_train, save_settings
from unet_ddp.config import TrainConfig, settings
from unet_ddp.errors import UserError


@pytest.mark.parametrize(
    ("words", "group", "name", "value"),
    [
        (["-e", "7"], "optimization", "epochs", 7),
        (["-b", "3"], "optimization", "batch_size", 3),
        (["-b", "auto"], "optimization", "batch_size", "auto"),
        (["--batch_size", "3"], "optimization", "batch_size", 3),
        (["-l", "0.1"], "optimization", "learning_rate", 0.1),
        (["--lr", "0.1"], "optimization", "learning_rate", 0.1),
        (["--learning-rate", "0.1"], "optimization", "learning_rate", 0.1),
        (["-s", "0.5"], "data", "scale", 0.5),
        (["-v", "25"], "data", "validation", 25.0),
        (["-c", "4"], "data", "classes", 4),
        (["-f", "x.pt"], "run", "load", "x.pt"),
        (["--exp_name", "a"], "run", "exp_name", "a"),
        (["--exp-name", "a"], "run", "exp_name", "a"),
        (["--save_every", "5"], "run", "save_every", 5),
        (["--no-amp"], "optimization", "amp", False),
        (["--amp"], "optimization", "amp", True),
        (["--bilinear"], "network", "bilinear", True),
        (["--resume"], "launch", "resume", "auto"),
        (["--resume", "x/last.pt"], "launch", "resume", "x/last.pt"),
        (["--resume", "-e", "3"], "launch", "resume", "auto"),
        (["--class-weights", "1", "2.5"], "optimization", "class_weights", (1.0, 2.5)),
        (["--crop-size", "64", "96"], "data", "crop_size", (64, 96)),
        (["--local-rank=1"], "launch", "nproc", 1),
        (["--local_rank=0", "-e", "2"], "optimization", "epochs", 2),
    ],
)
def test_flags(words: list[str], group: str, name: str, value: object) -> None:
    assert getattr(getattr(parse_train(words), group), name) == value


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epoch", "3", "--nonsense"], "--nonsense"),
        (["--epochs", "many"], "--epochs"),
        (["--scale", "2"], "--scale 2.0: must be above 0 and at most 1"),
        (["--batch-size", "0"], "--batch-size 0"),
        (["--batch-size", "some"], "--batch-size"),
        (["--images-per-step", "0"], "--images-per-step 0"),
        (["--classes", "1"], "--classes 1"),
        (["--validation", "100"], "--validation 100"),
        (["--images", "x"], "--images is given without --masks"),
        (["--group-pattern", "("], "--group-pattern"),
        (["--group-pattern", "abc"], "needs a bracket"),
        (["--dice-weight", "0", "--cross-entropy-weight", "0"], "--dice-weight"),
        (["--resume", "--overwrite"], "give one of them"),
        (["--compile", "--checkpointing"], "torch can't compile it"),
        (["--augmentation", "wild"], "--augmentation"),
        (["--ema", "1"], "--ema 1"),
        (["--seed", "-1"], "--seed -1"),
    ],
)
def test_what_can_not_be_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_train(words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value) and "│" not in str(caught.value)


def recipe(folder: Path, **values: object) -> str:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


def test_recipe_sets_defaults_and_the_command_line_wins(tmp_path: Path) -> None:
    path = recipe(
        tmp_path, epochs=7, **{"batch-size": 2}, amp=False, class_weights=[1, 2], exp_name=None
    )
    config = parse_train(["--config", path, "-e", "9"])
    assert config.optimization.epochs == 9
    assert config.optimization.batch_size == 2
    assert config.optimization.amp is False
    assert config.optimization.class_weights == (1.0, 2.0)
    assert config.run.exp_name is None
    assert parse_train(["--config", path, "--amp"]).optimization.amp is True


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"epoch": 3}, "unknown key 'epoch'; did you mean epochs?"),
        ({"qqq": 3}, "unknown key 'qqq'"),
        ({"epochs": "many"}, "--epochs"),
        ({"data": {"scale": 1}}, "unknown key 'data'"),
        ({"scale": {"x": 1}}, "takes a value"),
    ],
)
def test_recipes_that_can_not_be(tmp_path: Path, values: dict, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_train(["--config", recipe(tmp_path, **values)])
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", "!!python/object/apply:os.getcwd []", ""])
def test_recipes_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(UserError, match=r"r\.yaml"):
        parse_train(["--config", str(tmp_path / "r.yaml")])
    with pytest.raises(UserError, match=r"missing\.yaml"):
        parse_train(["--config", str(tmp_path / "missing.yaml")])


def test_saved_settings_start_the_same_run(tmp_path: Path) -> None:
    words = ["-e", "3", "-s", "0.25", "--class-weights", "1", "3", "--bilinear", "--no-amp"]
    config = parse_train(words)
    save_settings(config, tmp_path / "config.yaml")
    again = parse_train(["--config", str(tmp_path / "config.yaml")])
    assert settings(again) == settings(config)


def test_resume_takes_the_run_s_settings(tmp_path: Path) -> None:
    begun = parse_train(["-e", "3", "-b", "2", "--checkpoints", "elsewhere", "--exp-name", "a"])
    words = ["--resume", "--checkpoints", str(tmp_path), "-b", "5"]
    config = parse_train(words, resumed=settings(begun))
    assert config.optimization.epochs == 3
    assert config.optimization.batch_size == 5
    assert config.folder == tmp_path  # where it lies now, not where it was


def test_resume_from_a_file_stays_in_its_folder(tmp_path: Path) -> None:
    assert parse_train(["--resume", str(tmp_path / "x.pt")]).folder == tmp_path
    with pytest.raises(UserError, match="leave --exp-name out"):
        parse_train(["--resume", str(tmp_path / "x.pt"), "--exp-name", "b"])


def test_names_are_unique_over_the_groups() -> None:
    """Flags, recipes and saved settings are flat."""
    config = TrainConfig()
    groups = [vars(getattr(config, group)) for group in vars(config)]
    assert sum(map(len, groups)) == len(_names(TrainConfig))


def test_every_flag_has_its_line_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_train(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for name in _names(TrainConfig):
        assert f"--{name.replace('_', '-')}" in text
