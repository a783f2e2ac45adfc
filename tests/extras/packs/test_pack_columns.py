"""Columns in a file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from unet_ddp.errors import UserError
from unet_ddp.extras.packs.pack_columns import read_columns, write_columns


def test_a_file_is_open_as_long_as_one_of_its_columns_is_there(tmp_path: Path) -> None:
    write_columns(tmp_path / "a", {"kind": "x"}, {"one": np.arange(3), "two": np.eye(2)})
    _, about, columns = read_columns(tmp_path / "a")
    assert about["kind"] == "x" and columns["two"][1:].tolist() == [[0, 1]]
    column = columns.pop("one")
    handle = column.file.handle
    columns.clear()
    assert column[1:].tolist() == [1, 2]
    del column
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_another_file_at_the_place_of_one_that_is_known_is_refused(tmp_path: Path) -> None:
    """As for a reading process, when the images are packed again meanwhile."""
    write_columns(tmp_path / "a", {}, {"one": np.arange(3)})
    digest = read_columns(tmp_path / "a").digest
    assert read_columns(tmp_path / "a", digest).columns["one"][:].tolist() == [0, 1, 2]
    write_columns(tmp_path / "a", {}, {"one": np.arange(4)})
    with pytest.raises(UserError, match=r"a: has changed; start again$"):
        read_columns(tmp_path / "a", digest)
