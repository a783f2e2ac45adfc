"""Runs on data that are not files: the weights are those of the same files, on any ranks, through kills and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import data_flags, make_pair
from tests.ranks import Ranks, call_train, warm_python
from unet_ddp.extras.arrays.item_files import write_items
from unet_ddp.extras.arrays.items import Column, Items

# 12 images, 2 of them for validation: 5 steps of 2 in each of 2 epochs.
FLAGS = ["--width", "2", "--epochs", "2", "--validation", "17", "--precision", "float32", "--seed", "3", "--device", "cpu", "--timeout", "60"]  # fmt: skip
KINDS = {
    "triples": ["--images", "my_cells:rows"],
    "two stacks": ["--images", "my_cells:images", "--masks", "my_cells:masks"],
    "a database": ["--images", "my_cells:Table"],
    "written": ["--images", "arrays/images", "--masks", "arrays/masks"],
}
MODULE = """
import sqlite3
import numpy as np
with np.load("my_cells.npz") as file:
    names, images, masks = file["names"].tolist(), file["images"], file["masks"]
rows = [*zip(names, images, masks)]

class Table:
    is_open = False  # as LMDB has it, which a fork inherits
    def __init__(self):
        assert not Table.is_open
        Table.is_open = True
        self.file = sqlite3.connect("my_cells.db")  # its use in another thread or process is an error
    def __del__(self):
        Table.is_open = False
    def __len__(self):
        return self.file.execute("select count(*) from cells").fetchone()[0]
    def __getitem__(self, row):
        query = "select name, image, mask from cells where row = ?"
        name, image, mask = self.file.execute(query, (row,)).fetchone()
        return name, np.frombuffer(image, np.uint8).reshape(32, 32, 3), np.frombuffer(mask, np.uint8).reshape(32, 32)
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a set as files, as a module, as a database and as what `train` writes of arrays."""
    import sqlite3

    folder = tmp_path_factory.mktemp("cells")
    for row in range(12):
        make_pair(folder, f"{row:02d}", size=(32, 32))  # as items without names are called
    paths = sorted((folder / "imgs").iterdir())
    names = [path.stem for path in paths]
    images = np.stack([np.asarray(Image.open(path)) for path in paths])
    masks = np.stack([np.asarray(Image.open(folder / "masks" / path.name)) for path in paths])
    np.savez(folder / "my_cells.npz", names=names, images=images, masks=masks)
    (folder / "my_cells.py").write_text(MODULE)
    with sqlite3.connect(folder / "my_cells.db") as file:
        file.execute("create table cells (row integer, name text, image blob, mask blob)")
        for row, (name, image, mask) in enumerate(zip(names, images, masks, strict=True)):
            values = (row, name, image.tobytes(), mask.tobytes())
            file.execute("insert into cells values (?, ?, ?, ?)", values)
    file.close()
    rows = [*zip(names, images, masks, strict=True)]
    written, _ = write_items(Items(Column("images", rows)), folder)
    written.rename(folder / "arrays")
    return folder


@pytest.fixture
def folder(cells: Path, tmp_path: Path) -> Path:
    """A folder to train in, with the module."""
    for name in ("my_cells.npz", "my_cells.py", "my_cells.db", "arrays"):
        (tmp_path / name).symlink_to(cells / name)
    return tmp_path


def train(ranks: Ranks, size: int, folder: Path, *argv: str) -> str:
    outcomes = ranks.run(size, call_train, [*FLAGS, *argv], str(folder))
    assert not any(status for status, *_ in outcomes), outcomes
    return "".join(out for _, out, _ in outcomes)


def weights(folder: Path) -> Any:
    state = torch.load(folder / "checkpoints/last.pt", weights_only=True)
    return state["model"], state["best"]["score"], state["best"]["epoch"]


def assert_same(one: Path, other: Path) -> None:
    torch.testing.assert_close(weights(one), weights(other), rtol=0, atol=0)


@pytest.fixture(scope="module")
def expected(
    ranks: Ranks, cells: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Path]:
    """By the number of ranks, a folder with a run on the files."""
    found = {}
    for size in (1, 2):
        found[size] = tmp_path_factory.mktemp(f"files{size}")
        batch = f"--batch-size={2 // size}"
        train(ranks, size, found[size], *data_flags(cells), batch, "--workers=0")
    return found


@pytest.mark.parametrize(
    "size", [pytest.param(1, marks=[pytest.mark.thorough, pytest.mark.release]), 2]
)
@pytest.mark.parametrize(
    "kind",
    [
        "two stacks",
        *(
            pytest.param(kind, marks=pytest.mark.thorough)
            for kind in ("a database", "triples", "written")
        ),
    ],
)
def test_weights_are_those_of_the_files_also_if_the_run_stops(
    ranks: Ranks, folder: Path, expected: dict[int, Path], kind: str, size: int
) -> None:
    argv = [*KINDS[kind], f"--batch-size={2 // size}", "--workers=0"]
    train(ranks, size, folder, *argv, "--stop-after=3")
    train(ranks, size, folder, *KINDS[kind], "--workers=0", "--resume", "--stop-after=7")
    train(ranks, size, folder, *KINDS[kind], "--workers=0", "--resume")
    assert_same(folder, expected[size])


@pytest.mark.parametrize(
    "kind", [pytest.param("two stacks", marks=pytest.mark.thorough), "a database"]
)
@pytest.mark.parametrize("flags", ["--cache", "--balance=50 --crop-size 16 24"])
def test_reading_processes_and_caches_change_nothing(
    ranks: Ranks, cells: Path, folder: Path, kind: str, flags: str
) -> None:
    """With --balance the samples are not kept in memory: the reading processes read them in each epoch."""
    more = [*flags.split(), "--batch-size=2", "--workers=2"]
    train(ranks, 1, folder, *KINDS[kind], *more)
    (folder / "files").mkdir()
    train(ranks, 1, folder / "files", *data_flags(cells), *more)
    assert_same(folder, folder / "files")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("a database", 2),
        *(
            pytest.param(kind, size, marks=[pytest.mark.thorough, pytest.mark.release])
            for kind in KINDS
            for size in (1, 2)
            if (kind, size) != ("a database", 2)
        ),
    ],
)
def test_a_killed_run_ends_with_the_same_weights(
    folder: Path, expected: dict[int, Path], kind: str, size: int
) -> None:
    """It dies after the eighth step, in the middle of the second epoch."""
    how = [*KINDS[kind], "--workers=0", f"--nproc={size}"]
    new = [*FLAGS, *how, f"--batch-size={2 // size}", "--save-every-steps=2"]
    done = warm_python(folder, "-m", "tests.faults", "killed", *new)
    assert done.returncode != 0 and (folder / "checkpoints/last.pt").exists(), done.stderr
    done = warm_python(folder, "-m", "unet_ddp", "train", *how, "--resume", "--device=cpu")
    assert done.returncode == 0, done.stderr
    assert "resuming" in done.stdout and "0 epochs and 0 steps" not in done.stdout
    assert_same(folder, expected[size])
