"""Notebooks that are run cell by cell in a kernel of their own."""

from __future__ import annotations

import asyncio
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import LIMIT

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
v4 = pytest.importorskip("nbformat.v4", reason="nbformat is not installed")


class _Client(nbclient.NotebookClient):  # type: ignore[misc]
    """A notebook's reader, who interrupts the kernel when the cell has printed some text."""

    moment = ""

    def process_message(self, message: Any, cell: Any, index: int) -> Any:
        found = super().process_message(message, cell, index)
        if self.moment and self.moment in message["content"].get("text", ""):
            self.moment = ""
            self.interrupt = asyncio.ensure_future(self.km.interrupt_kernel())
        return found


def run_notebook(folder: Path, *cells: str, interrupt_at: str = "", **environment: str) -> str:
    """Return what the cells of a notebook in `folder` print, after which they may be interrupted once."""
    notebook = v4.new_notebook(cells=[v4.new_code_cell(textwrap.dedent(cell)) for cell in cells])
    client = _Client(notebook, timeout=LIMIT, resources={"metadata": {"path": str(folder)}})
    client.moment = interrupt_at
    own = {"IPYTHONDIR": str(folder / "ipython"), "OMP_NUM_THREADS": "1"}  # not the user's
    client.execute(env={**os.environ, **own, **environment})
    printed = [output.get("text", "") for cell in notebook.cells for output in cell.outputs]
    return "".join(printed)
