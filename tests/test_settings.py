"""What stands beside a field, and the settings that installed packages bring."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from unet_ddp.cli import parse_train
from unet_ddp.config import DataConfig, OptimizationConfig, TrainConfig
from unet_ddp.settings import (
    Excludes,
    Kind,
    called,
    names_of,
    pairs_of,
    settings_of,
    values_of,
    with_values,
)

PAGE = (Path(__file__).parents[1] / "docs" / "own_parts.md").read_text(encoding="utf-8")
(OWN,) = re.findall(r"^    from typing.*?(?=^\S)", PAGE.partition("## Settings")[2], re.M | re.S)
OWN = textwrap.dedent(OWN)


def run_with_package(folder: Path, module: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run code where a package that brings settings is installed."""
    (folder / "squares.py").write_text(module)
    info = folder / "squares-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: squares\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[unet_ddp.settings]\nsquares = squares:PowerSettings\n")
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[1])])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_settings_of_an_installed_package_join_flags_recipes_and_checkpoints(
    tmp_path: Path,
) -> None:
    """Its own check runs, its kinds count; a start imports no torch for the settings."""
    (tmp_path / "r.yaml").write_text("power: 3\n")
    code = f"""
import pickle, sys
from unet_ddp.cli import parse_train, with_saved
from unet_ddp.config import TrainConfig
from unet_ddp.settings import Kind, names_of
config = parse_train(["--config", {str(tmp_path / "r.yaml")!r}])
assert config.optimization.power == config.to_dict()["power"] == 3.0
assert list(config.to_dict())[list(config.to_dict()).index("power") - 1] == "clip"
assert pickle.loads(pickle.dumps(config)) == config
assert "power" in names_of(TrainConfig, Kind.FIXED)
assert with_saved(parse_train([]), {{"power": 4}}).optimization.power == 4
assert not {{"torch", "numpy", "PIL"}} & sys.modules.keys()
try:
    parse_train(["--power", "10"])
except ValueError as error:
    print(error)
parse_train(["--help-all"])
"""
    done = run_with_package(tmp_path, OWN, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--power: at most 9\n") and "--power N" in done.stdout
    assert "Exponent of my loss. (default: 2)" in done.stdout


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("power:", "epochs:", "error: --epochs: squares has it, too; uninstall that\n"),
        ("class Power", "class Strength", "error: squares: can't be imported (AttributeError: "),
    ],
)
def test_settings_of_an_installed_package_that_can_not_join(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    code = "import sys; from unet_ddp.__main__ import run; sys.exit(run('train', ['--help']))"
    done = run_with_package(tmp_path, OWN.replace(before, after), code)
    assert done.returncode == 2 and done.stderr.startswith(said) and done.stderr.count("\n") == 1


def test_another_process_reads_the_same_settings() -> None:
    config = parse_train(["--instances", "--hard-pixels", "20", "--budget", "1h"])
    assert type(config.data) is DataConfig and config.data.instances
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_setting_calls_a_part_when_it_is_not_its_default() -> None:
    assert called(TrainConfig(), "planners") == []
    wanted = {"batch_size": "auto", "learning_rate": "auto", "budget": "1h"}
    assert called(with_values(TrainConfig(), wanted), "planners") == list(wanted)
    for values, names in (
        ({"boundary_weight": 0.0, "hard_pixels": 100.0}, []),
        ({"boundary_weight": 5.0, "hard_pixels": 9.0}, ["hard_pixels", "boundary_weight"]),
    ):
        assert called(with_values(OptimizationConfig(), values), "pixel_factors") == names


def test_every_rule_names_settings() -> None:
    """Each stands for both, so it stands beside one of them."""
    known, pairs = settings_of(TrainConfig).keys(), pairs_of(TrainConfig, Excludes)
    assert known >= {name for pair in pairs for name in pair}
    assert len(pairs) == len({frozenset(pair) for pair in pairs})


def test_values_by_name() -> None:
    config = with_values(TrainConfig(), {"list": "a.csv", "epochs": 3, "fold": "2/4"})
    assert (config.data.pairs_file, config.data.fold) == ("a.csv", "2/4")
    changed = {
        name for name, value in values_of(config).items() if values_of(TrainConfig())[name] != value
    }
    assert changed == {"list", "epochs", "fold"}


def test_kinds_of_a_class_are_those_of_its_fields() -> None:
    data = names_of(TrainConfig, Kind.DATA)
    assert data == settings_of(DataConfig).keys() | {"seed", "config", "skip_bad_files"}
