"""Rows of CSV files that are written a line at a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable


def format_row(cells: Iterable[object]) -> str:
    """Return a row of a CSV file without its line's end."""
    row = io.StringIO(newline="")
    csv.writer(row).writerow(cells)  # quotes \r and \n
    return row.getvalue().removesuffix("\r\n")
