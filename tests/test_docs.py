"""README, docs and requirements agree with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from unet_ddp.cli import parse_train
from unet_ddp.commands.compare import CompareConfig
from unet_ddp.commands.evaluate import EvaluateConfig
from unet_ddp.commands.export import ExportConfig
from unet_ddp.commands.tune import TuneConfig
from unet_ddp.config import LaunchConfig, TrainConfig
from unet_ddp.prediction.config import PredictConfig

ROOT = Path(__file__).parent.parent


def read_pyproject() -> dict:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements() -> list[Requirement]:
    project = read_pyproject()["project"]
    lines = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        lines += extra
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(
            f"docs/{n}.md"
            for n in ("migrating", "evaluation", "prediction", "losses", "transfer", "tuning")
        ),
    ],
)
def test_flags_in_the_documents_exist(page: str) -> None:
    """Except other programs' flags in the first column of the migration table."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^\|[^|]*\|", "|", text, flags=re.M) if "migrating" in page else text
    known = {*TrainConfig().to_dict(), *vars(LaunchConfig())}
    for kind in (PredictConfig, EvaluateConfig, ExportConfig, CompareConfig, TuneConfig):
        known |= {field.name for field in fields(kind)}
    known |= {"lr", "help", "no_amp", "nproc_per_node", "max_restarts", "check"}
    for flag in re.findall(r"(?<![\w-])--([a-z][\w-]*)", text):
        assert flag.replace("-", "_") in known, flag


def test_migrating_has_every_flag_of_the_well_known_scripts() -> None:
    text = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")
    first = " ".join(re.findall(r"^\|([^|]*)\|", text, flags=re.M))
    for flag in ("-e", "-b", "-l", "-f", "-s", "-v", "-c", "--amp", "--bilinear", "--exp_name",
                 "--save_every", "--start_from", "--ddp_mode"):  # fmt: skip
        assert f"`{flag}" in first, flag


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.prediction.test_predict import write_model, write_photo
    from unet_ddp.data.labels import Labels

    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "checkpoints" / "best.pt", Labels((0, 255), names=("road", "car")))
    write_photo(tmp_path / "image.jpg", (50, 70))
    text = (ROOT / "docs/prediction.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    exec(program, {})
    out = capsys.readouterr().out
    assert "(50, 70)\n(2, 50, 70)\n" in out and "'car': " in out
    assert (tmp_path / "mask.png").exists()


def test_a_recipe_is_found_by_its_name_and_names_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [path.stem for path in (ROOT / "unet_ddp" / "recipes").glob("*.yaml")]
    for name in names:
        assert parse_train(["--config", name]).run.exp_name == name
        Path(name).mkdir()  # the images' folder
        assert parse_train(["--config", name]).run.exp_name == name
    assert names
    Path("mine").write_text("exp_name: own\n")
    assert parse_train(["--config", "mine"]).run.exp_name == "own"


def test_constraints_are_within_the_ranges() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    pinned = {
        name.lower().replace("_", "-"): Version(v) for name, v in (p.split("==") for p in lines)
    }
    for requirement in requirements():
        if requirement.name != "wandb":
            name = requirement.name.lower()
            assert pinned[name] in requirement.specifier, name


def test_every_dependency_has_both_bounds() -> None:
    for requirement in requirements():
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators == {">=", "<"}, str(requirement)


def list_tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return listed.stdout.split() or pytest.skip("no git checkout")


def test_mutation_testing_copies_what_the_tests_read() -> None:
    """It runs them in a copy of the repository; what it copies of itself is not in its setting."""
    tracked = {name.partition("/")[0] for name in list_tracked()}
    tracked -= {".gitignore", "LICENSE", "pyproject.toml", "tests", "unet_ddp"}
    assert set(read_pyproject()["tool"]["mutmut"]["also_copy"]) == tracked


def test_tracked_files_name_no_machine() -> None:
    for name in list_tracked():
        if name.endswith((".png", ".gz")):
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(work|home|root|Users)/\w", text), name
