"""Cells of CSV files that a spreadsheet shows as the text they are, and computes nothing of."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

_HARMLESS = r"[+-][\d.][\w. +-]*\Z"  # a number, or a name that begins with one: -122.4_37.7.png
_FORMULA = re.compile(rf"(?!{_HARMLESS})'*[=+\-@\t\r]")


def escape_cell(cell: Any) -> Any:
    """Return a cell, a text that begins like a formula after an apostrophe; numbers stay."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def unescape_cell(text: str) -> str:
    """Return the text that `escape_cell` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def format_row(cells: Iterable[object]) -> str:
    """Return a row of a CSV file without its line's end; texts are escaped."""
    row = io.StringIO(newline="")
    csv.writer(row).writerow(map(escape_cell, cells))  # quotes \r and \n
    return row.getvalue().removesuffix("\r\n")
