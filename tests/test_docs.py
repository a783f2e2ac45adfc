"""README, docs and requirements agree with the code."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import unet_ddp
from benchmarks.reference import COMMANDS
from tests.conftest import data_flags, make_set
from tests.ranks import call_main
from unet_ddp.cli import parse, parse_train
from unet_ddp.config import LaunchConfig, TrainConfig
from unet_ddp.prediction.config import PredictConfig, parse_predict

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


OTHERS = """lr help help_all no_amp check nproc_per_node max_restarts nnodes node_rank master_addr master_port
rdzv_id rdzv_backend rdzv_endpoint rdzv_conf local_addr signals_to_handle shm_size storage turns packed
sample most all_tests count side carvana camvid minutes seeds program data names weights no_test only results seconds kills ranks steps cycles case
save_tif numa_binding batch power index_url
retry retry_delay retry_connrefused data_binary
target read_only tmpfs
like src_nodata
nodes gpus_per_node gpus_per_task cpus_per_task time job_name me signal partition account logdir
no_deps no_index find_links name install version
server_host function_module function_parameter conf_threshold conv_mask_to_poly allow_unmatched_labels"""
PAGES = [
    "README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
]

ALTERNATIVES = {  # one run, started in several ways
    "docs/design-log.md", "docs/reliability.md", "docs/several-hosts.md", "docs/tutorials/your-images.md",
}  # fmt: skip


def read_commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each command line of this program in a page's blocks: its command, and the words after it."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    start = r"(?:[A-Z_]+=\S+ )*(?:python|torchrun)(?: -\S+)*? "
    call = r"(?:(train|predict)\.py|-m unet_ddp ([\w-]+))(?= |$)(.*)"
    for line in re.findall(r"^(?:    )?((?:[A-Z_]+=|python |torchrun ).*)", text, flags=re.M):
        found = re.match(start + call, line)
        if found:
            words = shlex.split(found[3].partition(" | ")[0], comments=True)
            shown = [word.strip("[]") for word in words if not re.match(r"[….$]|FLAGS", word)]
            yield found[1] or found[2], shown


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_documents_parse(page: str) -> None:
    for command, words in read_commands(page):
        kind: Any = COMMANDS[command]
        if "--config" in words:  # a run's, which is not there
            del words[(place := words.index("--config")) : place + 2]
        if issubclass(kind, TrainConfig):
            parse_train(words, prog=command, kind=kind)
        elif kind is PredictConfig:
            parse_predict(["image.jpg", *words])
        else:
            parse(kind, words, prog=command)


@pytest.mark.parametrize("page", sorted({*PAGES} - ALTERNATIVES))
def test_the_runs_of_a_page_have_folders_of_their_own(page: str) -> None:
    """Typed one after the other, none ends in "contains a run"."""
    runs = [words for command, words in read_commands(page) if command == "train"]
    names = [
        words[words.index("--exp-name") + 1] if "--exp-name" in words else "checkpoints"
        for words in runs
        if "--resume" not in words
    ]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("page", PAGES)
def test_flags_in_the_documents_exist(page: str) -> None:
    """But other programs' in the first column of the tables of how-to/from-other-programs.md, torchrun's and benchmarks'."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^\|[^|]*\|", "|", text, flags=re.M) if "/from-other" in page else text
    known = {
        alias for kind in COMMANDS.values() for alias in {field.name for field in fields(kind)}
    }
    known |= {*TrainConfig().to_dict(), *vars(LaunchConfig()), *OTHERS.split()}
    flags = re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)
    assert [flag for flag in flags if flag.replace("-", "_") not in known] == []


def read_code(page: str, first: str) -> str:
    """The block of a page that begins with this line."""
    text = (ROOT / page).read_text(encoding="utf-8")
    block = text[text.index(f"    {first}") :]
    lines = itertools.takewhile(lambda line: not line or line[0] == " ", block.splitlines())
    return textwrap.dedent("\n".join(lines)) + "\n"


def test_the_parts_of_one_s_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss, a network, an augmentation, a callback and a command as the pages have them, in one run."""
    page = "docs/own_parts.md"
    parts = {
        "my_losses": read_code("docs/losses.md", "class SquaredDice:"),
        "my_networks": read_code(page, "from torch import nn\n\n    class Tiny"),
        "my_augmentations": read_code(page, "def darker("),
        "my_callbacks": read_code(page, "class Notes:"),
        "my_commands": read_code(page, "from unet_ddp import Predictor"),
    }
    for name, code in parts.items():
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    make_set(tmp_path, 4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    argv = [*data_flags(tmp_path), "--epochs", "1", "-b", "2", "--workers", "0", "-v", "25"]
    argv += ["--loss", "my_losses:SquaredDice+ce", "--model", "my_networks:Tiny", "--width", "4"]
    argv += ["--augmentation", "my_augmentations:darker", "--callback", "my_callbacks:Notes"]
    status, out, err = call_main("train", argv, str(tmp_path))
    assert status == 0, err
    assert "saved checkpoints/last.pt" in out and "network: my_networks:Tiny, 3 channels" in out
    assert (tmp_path / "checkpoints/notes.txt").read_text().split()[0] == "1"
    command = ["my_commands:count", "checkpoints/best.pt"]
    status, _, err = call_main("unet_ddp.__main__", command, str(tmp_path))
    assert status == 2 and "type --network my_networks:Tiny, too" in err
    image = str(next((tmp_path / "imgs").iterdir()))
    how = [image, "-o", "mask.png", "--network", "my_networks:Tiny"]
    assert call_main("predict", how, str(tmp_path))[0] == 0 and Path("mask.png").is_file()


def test_the_page_has_every_flag_of_the_well_known_scripts() -> None:
    text = (ROOT / "docs/how-to/from-other-programs.md").read_text(encoding="utf-8")
    text = text.partition("\n## Pytorch-UNet\n")[2].partition("\n## ")[0]
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
    write_photo(tmp_path / "more.jpg", (30, 40))
    text = (ROOT / "docs/prediction.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    exec(program, {})
    out = capsys.readouterr().out
    assert "(50, 70)\n(2, 50, 70)\n" in out and "'car': " in out
    assert (tmp_path / "mask.png").exists()


@pytest.mark.thorough
def test_the_readme_s_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With fewer epochs and a smaller network."""
    make_set(tmp_path, 8)
    monkeypatch.chdir(tmp_path)
    shutil.copy(next((tmp_path / "imgs").iterdir()), "new.jpg")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    small = program.replace("epochs=20", 'epochs=1, width=2, batch_size=2, device="cpu"')
    assert small != program
    exec(small, {})
    assert "checkpoints/first 0." in capsys.readouterr().out and Path("mask.png").is_file()


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


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # all it must have
    assert citation["version"] == unet_ddp.__version__
    assert citation["license"] == read_pyproject()["project"]["license"]


def test_torch_without_its_gpu_libraries_stays_installed() -> None:
    """A later one would be replaced by the line that installs the package."""
    ranges = {requirement.name: requirement.specifier for requirement in requirements()}
    expected = {name: ranges[name] for name in ("torch", "torchvision")}
    for page in ("README.md", "docs/how-to/install.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        (line,) = re.findall(
            r"pip install (.*) --index-url https://download.pytorch.org/whl/cpu", text
        )
        named = [Requirement(word) for word in shlex.split(line)]
        assert {each.name: each.specifier for each in named} == expected, page


def test_the_install_page_has_every_extra() -> None:
    text = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8")
    for extra in read_pyproject()["project"]["optional-dependencies"]:
        assert f"`{extra}`" in text, extra


def test_every_dependency_has_both_bounds_or_one_version() -> None:
    for requirement in requirements():
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators in ({">=", "<"}, {"=="}), str(requirement)


def list_tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return listed.stdout.split() or pytest.skip("no git checkout")


def test_mutation_testing_copies_what_the_tests_read() -> None:
    """It runs them in a copy of the repository; what it copies of itself is not in its setting."""
    tracked = {name.partition("/")[0] for name in list_tracked()}
    tracked -= {".gitignore", "pyproject.toml", "tests", "unet_ddp"}
    assert set(read_pyproject()["tool"]["mutmut"]["also_copy"]) == tracked


def test_tracked_files_name_no_machine_and_are_merged() -> None:
    for name in list_tracked():
        if name.endswith((".png", ".xz")):
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(work|home|root|Users)/\w", text), name
        assert not re.search(r"^(<{7}|>{7}) ", text, flags=re.M), name
