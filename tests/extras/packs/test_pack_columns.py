"""Columns in a file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

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
