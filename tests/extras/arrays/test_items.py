"""Data that are not files: what a data set may be, and what is refused in one line."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import unet_ddp
from tests.conftest import make_set
from tests.ranks import call_main, call_train
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.pairs import DataPaths
from unet_ddp.data.readers.read import Source, read_mask
from unet_ddp.extras.arrays.item_files import remove_others, write_items
from unet_ddp.extras.arrays.item_kind import ItemKind
from unet_ddp.extras.arrays.items import Column, Items
from unet_ddp.plugins.own import renew

pytestmark = pytest.mark.usefixtures("no_report")
FLAGS = ["--width=2", "--epochs=1", "--batch-size=2", "--workers=0", "--device=cpu"]
IMAGES = np.arange(6 * 24 * 32 * 3, dtype=np.uint8).reshape(6, 24, 32, 3)
MASKS = (IMAGES[..., 0] > 99).astype(np.uint8)
TINY: dict[str, Any] = {
    "width": 2, "epochs": 1, "batch_size": 2, "workers": 0, "device": "cpu", "stop_after": "1",
}  # fmt: skip
MODULE = """
import numpy as np
images = np.arange(6 * 24 * 32 * 3, dtype=np.uint8).reshape(6, 24, 32, 3)
masks = (images[..., 0] > 99).astype(np.uint8)
rows = [(f"im{k}", image, mask) for k, (image, mask) in enumerate(zip(images, masks))]
"""


@pytest.fixture(autouse=True)
def _renewed() -> Iterator[None]:
    renew()
    yield
    renew()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what writes cells.py into the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(more: str = "") -> None:
        (tmp_path / "cells.py").write_text(MODULE + more)
        renew()

    return write


def read(images: Any, masks: Any = None, row: int = 0) -> Any:
    items = Items(Column("images", images), None if masks is None else Column("masks", masks))
    return items.read(row, len(items))


class Rows:
    def __len__(self) -> int:
        return len(MASKS)

    def __getitem__(self, row: int) -> Any:
        return {"image": Image.fromarray(IMAGES[row]), "label": Image.fromarray(MASKS[row])}


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        (IMAGES, MASKS),
        ([*IMAGES], [torch.from_numpy(mask).long() for mask in MASKS]),
        ([*zip(IMAGES, MASKS, strict=True)], None),
        ([(f"{k}", IMAGES[k], MASKS[k]) for k in range(6)], None),
        (Rows(), None),
        (Rows, None),
        (lambda: Rows(), None),
    ],
    ids=["stacks", "lists", "pairs", "triples", "dictionaries", "class", "function"],
)
def test_each_form_gives_the_same_items(images: Any, masks: Any) -> None:
    for row in (0, 5):
        item = read(images, masks, row)
        assert item.name == str(row)
        assert np.array_equal(item.image, IMAGES[row]) and item.image.dtype == np.uint8
        assert np.array_equal(item.mask, MASKS[row])


def test_a_palette_has_colours_as_an_image_and_indices_as_a_mask() -> None:
    picture = Image.fromarray(MASKS[0])
    picture.putpalette([10, 20, 30, 40, 50, 60])
    item = read([(picture, picture)])
    assert np.array_equal(item.mask, MASKS[0])
    assert item.image.shape == (24, 32, 3) and item.image[MASKS[0] == 1][0].tolist() == [40, 50, 60]


A, M = IMAGES[0], MASKS[0]


class Short(list[Any]):
    """A sequence whose error no line of Python raises."""

    def __len__(self) -> int:
        return 2


WRONG: list[tuple[Any, Any, str]] = [
    (IMAGES, MASKS[:5], "images has 6 items, masks 5; give a mask for each image"),
    ([], [], "images: is empty"),
    ([A[None]], [M], "images[0]: an array (1, 24, 32, 3); give one (H, W) or (H, W, C)"),
    ([A], [M.ravel()], "masks[0]: an array (768,)"),
    ([A[:0]], [M], "images[0]: an array (0, 32, 3)"),
    ([A.astype(object)], [M], "images[0]: an array of object; give one of numbers"),
    ([A], [np.array([["a", "b"]])], "masks[0]: an array of <U1"),
    ([None], [M], "images[0] is None; give an array"),
    ([A], [None], "masks[0] is None"),
    (["a.png"], ["b.png"], "images[0] is 'a.png'; give an array (H, W) or (H, W, C); of files, give the folder"),
    ([A], [M.astype(np.int64) + 2**40], "masks[0]: values from 1099511627776 to 1099511627777"),
    ([A], None, "images[0] is an array (24, 32, 3); give (name, image, mask)"),
    ([(A,)], None, "images[0] is a tuple; give (name, image, mask)"),
    ([None], None, "images[0] is None; give (name, image, mask)"),
    ([{"image": A}], None, "images[0] has 'image'; give (name, image, mask)"),
    ([("../a", A, M)], None, "images[0], image: '../a' is no name"),
    ([("/a", A, M)], None, "'/a' is no name"),
    ([(".a", A, M)], None, "'.a' is no name"),  # folders leave such files out
    ([("b/.a", A, M)], None, "'b/.a' is no name"),
    ([(1.5, A, M)], None, "1.5 is no name"),
    (iter([A]), [M], "images: a list_iterator; give a sequence, or an object with __len__ and __getitem__"),
    (lambda: 3, [M], "images: 3; give a sequence"),
    ({"a": A}, {"a": M}, "images: a dict is no sequence; give a list of its values, or (name, image, mask) of each"),
    ([A], {"a": M}, "masks: a dict is no sequence"),
    (lambda: {"a": A}, [M], "images: a dict is no sequence"),
    (MappingProxyType({"a": A}), [M], "images: a mappingproxy is no sequence"),
    (Short([A]), [M, M], "images[1]: IndexError: list index out of range"),
    ([np.ma.masked_equal(A, 7)], [M], "images[0] is a masked array; fill it, e.g. by .filled(0), and name the value by nodata="),
    (np.ma.masked_equal(IMAGES, 7), MASKS, "images[0] is a masked array"),
    ([[*np.ma.masked_equal(A, 7)]], [M], "images[0] is a masked array"),
    ([A], [np.ma.masked_equal(M, 1)], "masks[0] is a masked array; fill it, e.g. by .filled(0), and name the value by ignore_index="),
    ([("a", A, np.ma.masked_equal(M, 1))], None, "images[0], mask is a masked array"),
]  # fmt: skip


@pytest.mark.parametrize(("images", "masks", "said"), WRONG, ids=[said[:40] for *_, said in WRONG])
def test_what_is_no_pair_of_arrays_is_refused_in_a_line(images: Any, masks: Any, said: str) -> None:
    with pytest.raises(unet_ddp.UserError) as caught:
        read(images, masks, int(said.startswith("images[1]")))
    text = str(caught.value)
    assert said in text and "\n" not in text and len(text) < 200
    assert "items.py" not in text  # the file of ours in which a user has nothing to mend


def test_numbers_of_other_libraries_are_names() -> None:
    for number in (np.int64(7), np.array(7), torch.tensor(7), np.uint8(7)):
        assert read([(number, A, M)]).name == "7"


def test_a_column_of_pandas_has_its_rows_in_order() -> None:
    """Issue: rows were taken by their labels, so images and masks of a shuffled table paired wrong."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"image": [*IMAGES], "mask": [*MASKS]}).iloc[[5, 3, 0, 1, 2, 4]]
    item = read(table["image"], [*table["mask"]])
    assert np.array_equal(item.image, IMAGES[5]) and np.array_equal(item.mask, MASKS[5])
    with pytest.raises(unet_ddp.UserError, match="images: a DataFrame is no sequence"):
        read(table)


def test_a_masked_array_without_masked_pixels_is_an_array() -> None:
    item = read(np.ma.array(IMAGES, mask=False), np.ma.array(MASKS))
    assert np.array_equal(item.image, IMAGES[0]) and np.array_equal(item.mask, MASKS[0])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"images": IMAGES, "masks": "masks"}, "images: an array (6, 24, 32, 3), masks is 'masks'; give arrays for both"),
        ({"images": "imgs", "masks": [*MASKS]}, "masks: a list of 6 values, images is 'imgs'"),
        ({"masks": MASKS}, "masks: an array (6, 24, 32), images is missing"),
        ({"images": IMAGES, "masks": MASKS, "val_images": IMAGES, "val_masks": "m"}, "val_images: an array"),
        ({"images": [("a", A, M), ("a", A, M)]}, "images: items 0 and 1 have one name, 'a'"),
        ({"images": IMAGES, "masks": MASKS, "epochs": 0}, "--epochs 0: must be 1 or more"),
        ({"images": IMAGES[:1], "masks": MASKS[:1]}, "none left to train on"),
        ({"images": IMAGES, "masks": MASKS.astype(np.float32) + 0.5}, "masks[0]: mask values are not whole numbers"),
        ({"images": IMAGES, "masks": MASKS, "val_images": [("a/b", A, M[1:])]}, "val_masks[a/b] is 32x23, its image 32x24"),
    ],
)  # fmt: skip
def test_train_refuses_in_a_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(unet_ddp.UserError) as caught:
        unet_ddp.train(**settings)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not [*tmp_path.rglob("arrays-*"), *tmp_path.rglob("*.npy")]


def test_an_exception_names_the_item_and_the_line(module: Callable[[str], None]) -> None:
    module(
        "class Broken:\n"
        "    def __len__(self): return 6\n"
        "    def __getitem__(self, row):\n"
        "        if row == 4: raise KeyError('no such cell')\n"
        "        return rows[row]\n"
        "broken = Broken()\n"
        "def opens(): return broken[4]\n"
    )
    status, out, err = call_train(["--images=cells:broken", *FLAGS], ".")
    assert status == 2 and out == ""
    assert err == "error: cells:broken[4]: KeyError: 'no such cell' (cells.py, line 9)\n"
    status, _, err = call_train(["--images=cells:opens", *FLAGS], ".")
    assert err == "error: cells:opens(): KeyError: 'no such cell' (cells.py, line 9)\n"
    status, out, err = call_train(
        ["--images=cells:broken", "--skip-bad-files=1", "--stop-after=1", *FLAGS], "."
    )
    assert status == 0 and "skipped cells:broken[4]: KeyError" in out and "5 pairs" in out, err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--images=cells:nothing"], "cells:nothing: can't be imported (AttributeError"),
        (["--images=cells:np"], "cells:np: a module; give a sequence"),
        (["--images=cells:images", "--masks=masks"], "masks and cells:images: one is a folder"),
        (["--images=imgs", "--masks=cells:masks"], "imgs and cells:masks: one is a folder"),
        (["--images=cells:images"], "cells:images[0] is an array (24, 32, 3); give (name, image, mask)"),
        (["--images=cells:images", "--masks=cells:rows"], "cells:rows[0] is a tuple; give an array"),
        (["--images=cells:chance"], "cells:chance[0]: differs when it is read again"),
        (["--images=cells:twice"], "cells:twice: items 0 and 6 have one name, 'im0'"),
    ],
)  # fmt: skip
def test_a_command_line_is_refused_in_a_line(
    module: Callable[[str], None], flags: list[str], said: str
) -> None:
    module(
        "class Chance:\n"
        "    def __len__(self): return 6\n"
        "    def __getitem__(self, row): return images[row] ^ np.random.bytes(1)[0], masks[row]\n"
        "chance, twice = Chance(), rows + rows\n"
    )
    status, _, err = call_train([*flags, *FLAGS], ".")
    assert status == 2 and said in err and err.count("\n") == 1, err
    assert not Path("checkpoints").exists()


def test_only_what_is_typed_is_imported(module: Callable[[str], None], tmp_path: Path) -> None:
    """A recipe or a checkpoint may be a stranger's."""
    module("")
    (tmp_path / "recipe.yaml").write_text("images: cells:rows\n")
    status, _, err = call_train(["--config=recipe.yaml", *FLAGS], ".")
    assert status == 2 and "a recipe or a checkpoint starts no code" in err
    status, _, err = call_train(["--images=cells:rows", *FLAGS, "--stop-after=1"], ".")
    assert status == 0, err
    status, _, err = call_train(["--resume"], ".")
    assert (
        status == 2
        and "--images: the run's was 'cells:rows'; a checkpoint opens no address and starts no code"
        in err
    )
    status, _, err = call_main("unet_ddp.commands.evaluate", ["--device=cpu"], ".")
    assert status == 2 and "a checkpoint opens no address and starts no code" in err
    argv = ["--device=cpu", "--images=cells:rows"]
    status, out, err = call_main("unet_ddp.commands.evaluate", argv, ".")
    assert status == 0 and "scored: 6 images in cells:rows" in out, err


def test_a_folder_of_that_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_set(tmp_path, 2))
    Path("imgs").rename("cells:rows")
    assert len(find_pairs(Path("cells:rows"), Path("masks"))) == 2
    assert not ItemKind().claims(DataPaths(Path("C:/imgs"), Path("D:masks/x")))


def test_the_doctor_describes_a_data_set(module: Callable[[str], None]) -> None:
    module("")
    status, out, err = call_main("unet_ddp.commands.doctor", ["--images=cells:rows"], ".")
    assert "images: 6 .npy; 6 of 32x24" in out and "cells:rows" not in err, out + err
    assert status == 0


def test_changed_items_are_other_data(module: Callable[[str], None], tmp_path: Path) -> None:
    """The cache of scans and of samples knows an item by its content; so does a run that continues."""
    argv = ["--images=cells:rows", "--augmentation=none", "--cache", *FLAGS]
    module("")
    status, out, err = call_train([*argv, "--stop-after=1"], ".")
    assert status == 0 and "classes: 2, mask values 0, 1" in out, err
    module("rows = [(name, 255 - image, mask * 3) for name, image, mask in rows]\n")
    other = [*argv, "--exp-name=other", "--stop-after=1"]
    status, out, err = call_train(other, ".")
    assert status == 0 and "classes: 2, mask values 0, 3" in out, err
    module("rows = [(name, 255 - image, mask) for name, image, mask in rows]\n")
    status, out, err = call_train([*argv, "--resume"], ".")
    assert status == 2 and "other images or masks under the names that the run started with" in err


def test_a_learning_curve_needs_files(module: Callable[[str], None]) -> None:
    module("")
    argv = ["--images=cells:rows", "--width=2", "--device=cpu", "--sizes", "1", "2", "3"]
    status, _, err = call_main("unet_ddp.__main__", ["learning-curve", *argv], ".")
    assert (
        status == 2 and err == "error: --images cells:rows: is no folder; save the items as files\n"
    )


def test_a_function_is_called_by_the_thread_that_reads(tmp_path: Path) -> None:
    """So a connection to SQLite, which one thread may use, is read by those of the scan."""
    path = tmp_path / "cells.db"
    with sqlite3.connect(path) as file:
        file.execute("create table cells (row integer, image blob, mask blob)")
        for row in range(6):
            file.execute(
                "insert into cells values (?, ?, ?)",
                (row, IMAGES[row].tobytes(), MASKS[row].tobytes()),
            )
    calls = []

    class Table:
        def __init__(self) -> None:
            self.file = sqlite3.connect(path)
            calls.append(threading.get_ident())

        def __len__(self) -> int:
            return int(self.file.execute("select count(*) from cells").fetchone()[0])

        def __getitem__(self, row: int) -> Any:
            found = self.file.execute(
                "select image, mask from cells where row = ?", (row,)
            ).fetchone()
            return tuple(np.frombuffer(each, np.uint8).reshape(24, 32, -1) for each in found)

    column = Column("images", Table)
    items = Items(column)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda row=row: found.append(items.read(row, 6)))
        for row in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(item.name for item in found) == list("012345") and len(calls) == 1


def test_arrays_are_written_once_and_by_content(tmp_path: Path) -> None:
    """A run that continues finds them; those of other content are beside them; a killed writer's are removed."""
    (tmp_path / ".arrays-ab12").mkdir()
    os.utime(tmp_path / ".arrays-ab12", (1, 1))
    (tmp_path / ".arrays-cd34").mkdir()  # of a process that still writes
    how = Items(Column("images", IMAGES), Column("masks", MASKS)), tmp_path
    folder, line = write_items(*how)
    assert line == f"6 images and masks written to {folder}/ (0.0 MB)"
    assert write_items(*how) == (folder, "")
    other, _ = write_items(Items(Column("images", IMAGES), Column("masks", MASKS * 2)), tmp_path)
    assert {*tmp_path.iterdir()} == {folder, other, tmp_path / ".arrays-cd34"}
    with Source(folder / "images/3.npy") as source:
        assert source.header.size == (24, 32)
    assert np.array_equal(read_mask(other / "masks/3.npy"), 2 * MASKS[3])


def test_with_overwrite_the_arrays_of_the_run_before_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unet_ddp.train(images=IMAGES, masks=MASKS, **TINY)
    with pytest.raises(unet_ddp.UserError, match="contains a run"):
        unet_ddp.train(images=IMAGES, masks=3 * MASKS, **TINY)
    (first,) = Path("checkpoints").glob("arrays-*")
    unet_ddp.train(images=IMAGES, masks=3 * MASKS, overwrite=True, **TINY)
    (second,) = Path("checkpoints").glob("arrays-*")
    assert first != second
    run = unet_ddp.train(resume=True, device="cpu", workers=0)  # the run knows where they are
    assert len(run.metrics) == 1


def test_only_arrays_that_runs_have_written_and_nothing_names_go(tmp_path: Path) -> None:
    """Issue: a run called arrays-first went, a folder of the user's, and arrays that the run still reads."""
    kept, _ = write_items(Items(Column("images", IMAGES), Column("masks", MASKS)), tmp_path)
    gone, named = (tmp_path / f"arrays-{digit * 12}" for digit in "ab")
    for folder in (
        gone / "images",
        named / "masks",
        tmp_path / "arrays-first",
        tmp_path / "arrays-cccccccccccc" / "mine",
    ):
        folder.mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(f"val_images: {named}/images\n")
    remove_others([kept])
    left = {path.name for path in tmp_path.iterdir()} - {"config.yaml", kept.name}
    assert left == {named.name, "arrays-first", "arrays-cccccccccccc"}


def test_threads_that_score_arrays_take_turns() -> None:
    """Issue: one got the other's data, as both were known by the names of the arguments."""
    with ThreadPoolExecutor(2) as pool:
        check = lambda count: unet_ddp.check(count * [*IMAGES], count * [*MASKS])  # noqa: E731
        found = [*pool.map(check, [1, 2] * 3)]
    assert [each.training + each.validation for each in found] == [6, 12] * 3


def test_an_object_of_a_module_is_read_where_it_is(
    module: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list there may have changed since its import: it is written as it is now."""
    module(
        "class Set:\n    __len__ = rows.__len__\n    __getitem__ = rows.__getitem__\ncells = Set()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cells", raising=False)
    cells = __import__("cells")

    run = unet_ddp.train(images=cells.cells, exp_name="named", **TINY)
    assert "images: cells:cells\n" in (run.path / "config.yaml").read_text()
    run = unet_ddp.train(images=cells.rows, exp_name="written", **TINY)
    assert [*run.path.glob("arrays-*")]


def test_validation_arrays_are_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    how: dict[str, Any] = {"width": 2, "epochs": 1, "batch_size": 2, "workers": 0, "device": "cpu"}
    rows = [*zip(IMAGES[:2], MASKS[:2], strict=True)]
    run = unet_ddp.train(images=IMAGES[2:], masks=MASKS[2:], val_images=rows, **how)
    assert len(run.metrics) == 1 and len([*run.path.glob("arrays-*")]) == 2
