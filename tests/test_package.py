"""What is installed is whole: nothing of the package is missing in its wheel and source archive."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

import unet_ddp
from tests.test_docs import ROOT, list_tracked, read_pyproject

BUILD = "import sys; from hatchling import build; getattr(build, sys.argv[1])(sys.argv[2])"


def run(folder: Path, packages: Path, *argv: str) -> str:
    """What a Python program prints that finds packages in a folder first."""
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_name_is_newer_than_the_oldest_python() -> None:
    """Outside TYPE_CHECKING: the tests may run on another Python."""
    newer = {
        "Self", "Never", "LiteralString", "Required", "NotRequired", "Unpack", "assert_never",
        "override",
    }  # fmt: skip
    for path in (ROOT / "unet_ddp").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module == "typing":
                assert not {name.name for name in node.names} & newer, path


@pytest.mark.source
def test_docstrings_name_the_thing() -> None:
    """None begins with a question, of which a reader waits for the subject."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in (ROOT / "unet_ddp").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            found = re.match(r"(What|Whether|Within|Of|Where|How|Which|When|Why|Who)\b", text or "")
            assert not found, (path, text)


@pytest.mark.source
def test_each_library_that_is_imported_is_declared() -> None:
    """One that another library brings may be gone with that library's next version.

    Each type checker brings typing_extensions, which nothing imports as the program runs.
    """
    project = read_pyproject()["project"]
    extras = project["optional-dependencies"]
    users = [extras[name] for name in extras.keys() - {"dev", "docs", "mutation"}]
    declared = {
        re.split(r"[^\w-]", line)[0].replace("_", "-").lower()
        for line in sum(users, project["dependencies"])
    }
    providers = packages_distributions()
    for path in (ROOT / "unet_ddp").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        checked = {
            id(node)
            for block in tree.body
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
            for node in ast.walk(block)
        }
        for node in ast.walk(tree):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            if names == ["typing_extensions"] and id(node) in checked:
                continue
            for name in {name.partition(".")[0] for name in names} - {*sys.stdlib_module_names}:
                found = {each.replace("_", "-").lower() for each in providers.get(name, [])}
                assert name == "unet_ddp" or not found or found & declared, (path, name)


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.release
def test_a_wheel_of_the_source_archive_trains_and_predicts(tmp_path: Path) -> None:
    """In a folder that is no clone: recipes, pages and programs are in the package."""
    tracked = [name for name in list_tracked() if (ROOT / name).is_file()]
    for name in tracked:
        (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "clone" / name)
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    built = []
    for folder in (tmp_path, tmp_path / "again"):  # the same bytes each time
        run(tmp_path / "clone", work, "-c", BUILD, "build_sdist", str(folder))
        run(tmp_path / "clone", work, "-c", BUILD, "build_wheel", str(tmp_path / "again"))
        built.append(
            [
                each.read_bytes()
                for each in (*folder.glob("*.gz"), *(tmp_path / "again").glob("*.whl"))
            ]
        )
    assert len(built[0]) == 2 and built[0] == built[1]
    with tarfile.open(*tmp_path.glob("*.tar.gz")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in tracked if not name.startswith(".")} <= packed
    run(*(tmp_path / "source").iterdir(), work, "-c", BUILD, "build_wheel", str(tmp_path))
    with zipfile.ZipFile(*tmp_path.glob("*.whl")) as wheel:
        wheel.extractall(site)
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {name for name in tracked if name.startswith("unet_ddp/")}
    assert "unet_ddp/py.typed" in names
    assert "unet_ddp.__main__:start" in next(site.glob("*/entry_points.txt")).read_text()
    program = ("-m", "unet_ddp")
    assert "ready to train" in run(work, site, *program, "doctor")
    flags = "--config cells --exp-name a --epochs 1 --width 2 --scale 0.25 --workers 0"
    said = run(work, site, *program, "train", *flags.split())
    assert "report: " in said and (work / "checkpoints/a/report.html").exists()
    run(work, site, *program, "predict", "data/demo/unseen/car10_00.jpg", "--overlay")
    run(work, site, *program, "evaluate")
    assert (work / "data/demo/unseen/car10_00_mask.png").exists()
    assert (work / "checkpoints/a/evaluation/report.html").exists()


def test_the_version_is_the_same_everywhere() -> None:
    """In all that is tracked and names it; tests/test_docs.py and tests/test_deploy.py read two of the files."""
    version = unet_ddp.__version__
    short = version.rpartition(".")[0]
    texts = {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in list_tracked()
        if name.endswith((".md", ".yaml", ".cff"))
    }
    everything = "\n".join(texts.values())
    assert {*re.findall(r"unet_ddp-(\d[\d.]*\d)-py3", everything)} == {version}
    assert {*re.findall(r"image: \S*/unet_ddp:(\S+)", everything)} == {short}
    newest = re.findall(r"^## (.*)$", texts["CHANGELOG.md"], re.M)[0]
    date = yaml.safe_load(texts["CITATION.cff"])["date-released"]
    assert newest == f"[{version}] - {date}"
    classifiers = read_pyproject()["project"]["classifiers"]
    assert ("Development Status :: 5 - Production/Stable" in classifiers) == (
        int(version.partition(".")[0]) > 0
    )
    kept = json.loads((ROOT / f"tests/released/{short}/two/run.json").read_text(encoding="utf-8"))
    assert kept["starts"][0]["unet_ddp"].rpartition(".")[0] == short
