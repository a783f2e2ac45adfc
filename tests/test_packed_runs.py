"""Runs on a pack are the runs on its files, on two ranks, from their first step or from any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import data_flags, make_set
from tests.object_store import ObjectStore
from tests.ranks import Ranks
from tests.test_remote_runs import FLAGS, call_with
from tests.test_resume import SAMPLED, assert_same_state
from unet_ddp.checkpoints import file as checkpoint

pytestmark = pytest.mark.processes


def run(
    ranks: Ranks, size: int, store: ObjectStore, module: str, argv: list[str], folder: Path
) -> str:
    """Run a program on `size` ranks and return what it prints."""
    folder.mkdir(exist_ok=True)
    outcomes = ranks.run(size, call_with, store.environment, module, argv, str(folder))
    assert [(status, err) for status, _, err in outcomes] == [(0, "")] * size, outcomes
    return "".join(out for _, out, _ in outcomes)


def test_a_run_begun_on_files_ends_on_a_pack(
    ranks: Ranks, object_store: ObjectStore, tmp_path: Path
) -> None:
    """As the run on the files, and with the same scores on either."""
    images = data_flags(make_set(tmp_path, 12, size=(32, 32)))
    pack, files, both = ["--images", str(tmp_path / "pack")], tmp_path / "files", tmp_path / "both"
    other = ("unet_ddp.__main__", ["pack", *images, "--output", pack[1]])
    run(ranks, 1, object_store, *other, tmp_path)
    run(ranks, 2, object_store, "train", [*images, *FLAGS], files)
    run(ranks, 2, object_store, "train", [*images, *FLAGS, "--max-steps", "3"], both)
    run(ranks, 2, object_store, "train", [*pack, *FLAGS, "--resume"], both)
    assert_same_end(both, files)
    scores = []
    for argv in (images, pack):
        run(ranks, 1, object_store, "unet_ddp.__main__", ["evaluate", *argv, "--overwrite"], both)
        found = json.loads((both / "checkpoints" / "evaluation" / "scores.json").read_text())
        scores.append({name: value for name, value in found.items() if name != "scored"})
    assert scores[0] == scores[1]
    assert "12 images in" in found["scored"]


@pytest.mark.thorough
def test_a_run_on_a_pack_in_storage_is_the_run_on_its_files(
    ranks: Ranks, object_store: ObjectStore, tmp_path: Path
) -> None:
    """With reading processes, drawn by class; the split is told by names and seed, not by a list."""
    images, pack = data_flags(make_set(tmp_path, 12, size=(32, 32))), "s3://bucket/packed"
    other = ("unet_ddp.__main__", ["pack", *images, "--output", pack])
    run(ranks, 1, object_store, *other, tmp_path)
    drawn = [*FLAGS, *SAMPLED.split()]
    run(ranks, 2, object_store, "train", [*images, *drawn], tmp_path / "files")
    flags = [*drawn, "--workers", "1", "--images", pack]
    out = run(ranks, 2, object_store, "train", flags, tmp_path / "packed")
    assert "split: image by image; 10 images to train on, 2 to validate" in out
    assert_same_end(tmp_path / "packed", tmp_path / "files")
    assert (tmp_path / "files" / "checkpoints" / "split.csv").exists()
    assert not (tmp_path / "packed" / "checkpoints" / "split.csv").exists()


def assert_same_end(folder: Path, other: Path) -> None:
    one, two = (checkpoint.load(run / "checkpoints" / "last.pt") for run in (folder, other))
    assert_same_state(one, two)
