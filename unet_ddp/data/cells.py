"""Cells of CSV files that a spreadsheet shows as the text they are, and computes nothing of."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import TypeVar

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
Cell = TypeVar("Cell")


def escape_cell(cell: Cell) -> Cell | str:
    """Return a cell, a text that begins like a formula after an apostrophe; numbers stay numbers."""
    if not isinstance(cell, str) or not _FORMULA.match(cell):
        return cell
    try:
        float(cell)
        return cell
    except ValueError:
        return f"'{cell}"


def format_row(cells: Iterable[object]) -> str:
    """Return a row of a CSV file without its line's end; texts are escaped."""
    row = io.StringIO(newline="")
    csv.writer(row).writerow([escape_cell(cell) for cell in cells])  # quotes \r and \n
    return row.getvalue().removesuffix("\r\n")


def unescape_cell(text: str) -> str:
    """Return the text that `escape_cell` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text
