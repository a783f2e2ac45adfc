"""Somebody else's package, outside the repository: each of its parts by entry point and by import path."""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import jobs
from tests.conftest import install_package
from tests.ranks import PREDICT, ROOT, TRAIN, Ranks, warm_python

PACKAGE = Path(__file__).parent / "package"
COUNT, SIDE = 12, 32
ENTRY_POINTS = {
    "--model": "field-small",
    "--loss": "field-squared+ce",
    "--augmentation": "field-dim",
    "--callback": "field-lines",
}
PATHS = {
    "--model": "field_parts.networks:Small",
    "--loss": "field_parts.losses:Squared+ce",
    "--augmentation": "field_parts.augmentations:dim",
    "--callback": "field_parts.callbacks:Lines",
    "--reader": "field_parts.readers:FieldFile",
}
BY_PATH = [word for pair in PATHS.items() for word in pair]
BY_NAME = [word for pair in ENTRY_POINTS.items() for word in pair]
SETTINGS = [
    *("--width", "4", "--epochs", "2", "--validation", "25", "--workers", "0", "--seed", "3"),
    *(
        "--clip", "0", "--precision=float32", "--device", "cpu", "--images", "imgs", "--masks",
        "masks",
    ),
]  # fmt: skip


def install(folder: Path, *, as_package: bool) -> None:
    """Copy the package there; what an installation adds is the folder with its entry points."""
    shutil.copytree(PACKAGE / "field_parts", folder / "field_parts")
    if as_package:
        install_package(folder, (PACKAGE / "entry_points.txt").read_text())


def write_field(path: Path, pixels: np.ndarray[Any, Any]) -> None:
    path.write_bytes(np.array(pixels.shape[:2], "<u4").tobytes() + pixels.tobytes())


class Place:
    """A folder with pairs, and the programs that run in it."""

    def __init__(self, folder: Path, *, as_package: bool) -> None:
        self.folder = folder
        (folder / "site").mkdir(parents=True)
        install(folder / "site", as_package=as_package)
        generator = np.random.default_rng(5)
        for name in ("imgs", "masks"):
            (folder / name).mkdir()
        for index in range(COUNT):
            pixels = generator.integers(0, 100, (SIDE, SIDE, 3), dtype=np.uint8)
            mask = np.zeros((SIDE, SIDE, 3), np.uint8)
            top, left = generator.integers(0, SIDE // 2, 2)
            pixels[top : top + 12, left : left + 12] += 120
            mask[top : top + 12, left : left + 12] = 255
            write_field(folder / "imgs" / f"{index:02}.field", pixels)
            write_field(folder / "masks" / f"{index:02}.field", mask)

    def run(self, *argv: str) -> str:
        """Return what a Python program prints."""
        path = os.pathsep.join([str(self.folder / "site"), str(ROOT)])
        done = warm_python(self.folder, *argv, PYTHONPATH=path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def weights(self) -> dict[str, torch.Tensor]:
        """Return those of the run."""
        content = torch.load(self.folder / "checkpoints" / "last.pt", weights_only=True)
        weights: dict[str, torch.Tensor] = content["model"]
        return weights


@pytest.fixture(scope="module")
def by_name(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A run on two processes with the parts of an installed package."""
    place = Place(tmp_path_factory.mktemp("name"), as_package=True)
    place.run(TRAIN, *SETTINGS, *BY_NAME, "--batch-size", "2", "--nproc", "2")
    return place


@pytest.fixture(scope="module")
def by_path(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The same run on one process, with the parts at import paths."""
    place = Place(tmp_path_factory.mktemp("path"), as_package=False)
    place.run(TRAIN, *SETTINGS, *BY_PATH, "--batch-size", "4")
    return place


def test_a_run_is_the_same_by_entry_points_and_paths_on_one_process_and_two(
    by_name: Place, by_path: Place
) -> None:
    one, other = by_name.weights(), by_path.weights()
    assert one.keys() == other.keys() and "encoder.0.weight" in one
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-4, atol=1e-5)
    for place in (by_name, by_path):
        lines = (place.folder / "checkpoints" / "lines.jsonl").read_text().splitlines()
        notes = [json.loads(line) for line in lines]
        assert [note["epoch"] for note in notes if "epoch" in note] == [1, 2]
        assert {"saved": "last.pt"} in notes and notes[-1] == {"closed": True}
        assert "squared" in next(note["columns"] for note in notes if "columns" in note)


@pytest.mark.parametrize(
    ("place", "flags"),
    [
        ("by_name", ["--write", "field-shares", "--network", ENTRY_POINTS["--model"]]),
        (
            "by_path",
            [
                *("--write", "field_parts.outputs:Shares", "--reader", PATHS["--reader"]),
                *("--network", PATHS["--model"]),
            ],
        ),
    ],
)
def test_predictions_have_the_output(
    place: str, flags: list[str], request: pytest.FixtureRequest
) -> None:
    found: Place = request.getfixturevalue(place)
    model = ["--model", "checkpoints/best.pt", "--device", "cpu"]
    found.run(PREDICT, "imgs", "-o", "found", *model, *flags)
    shares = json.loads((found.folder / "shares.json").read_text())
    assert [share["image"] for share in shares] == [f"{index:02}.field" for index in range(COUNT)]
    assert all(sum(share["pixels"]) == SIDE * SIDE for share in shares)
    assert json.loads((found.folder / "found" / "03_shares.json").read_text()) == shares[3]
    assert len(list((found.folder / "found").glob("*_mask.png"))) == COUNT


def test_the_command_is_found_by_its_name_and_its_path(by_name: Place, by_path: Place) -> None:
    brightness = [
        by_name.run("-m", "unet_ddp", "field-measure", "imgs/00.field"),
        by_name.run("-m", "unet_ddp", "field_parts.commands:measure", "imgs/00.field"),
    ]
    assert brightness[0] == brightness[1] and brightness[0].startswith("imgs/00.field: ")
    assert "field-measure" in by_name.run("-m", "unet_ddp")
    assert "field-measure" not in by_path.run("-m", "unet_ddp")


def gradients(folder: str, cases: list[dict[str, Any]]) -> Any:
    """Return the gradients of losses in the package in `folder`; on a rank."""
    sys.path.insert(0, folder)
    try:
        return jobs.loss_gradients(cases)
    finally:
        sys.path.remove(folder)


def test_the_loss_has_the_same_gradients_on_1_2_and_4_ranks(ranks: Ranks, tmp_path: Path) -> None:
    install(tmp_path, as_package=True)
    cases = [{"loss": "field-squared"}, {"loss": "field_parts.losses:Squared+ce"}]
    alone = ranks.run(1, gradients, str(tmp_path), cases)[0]
    for size in (2, 4):
        for found in ranks.run(size, gradients, str(tmp_path), cases):
            for mine, theirs in zip(found, alone, strict=True):
                for one, other in zip(mine, theirs, strict=True):
                    assert np.abs(other).max() > 1e-3
                    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_no_part_needs_a_private_name() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) == 8
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [*(node.module or "").split("."), *(each.name for each in node.names)]
            elif isinstance(node, ast.Attribute):
                names = [node.attr]
            private = [n for n in names if n.startswith("_") and not n.endswith("__")]
            assert not private, f"{file.name}: {private}"
