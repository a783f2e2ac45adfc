"""Rows of CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from unet_ddp.errors import UserError
from unet_ddp.files import refuse_special


def read_rows(path: Path, flag: str, *, errors: str = "strict") -> list[tuple[int, list[str]]]:
    """Return the rows of a UTF-8 file that have text, each with the number of its last line.

    `errors` is that of `open`; messages name the `flag`.
    """
    try:
        refuse_special(path)
        with path.open(newline="", encoding="utf-8-sig", errors=errors) as file:
            reader = csv.reader(file, skipinitialspace=True)
            return [(reader.line_num, row) for row in reader if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{flag} {path}: {reason}; give a CSV file") from None


def format_row(cells: Iterable[object]) -> str:
    """Return a row without its line's end."""
    row = io.StringIO(newline="")
    csv.writer(row).writerow(cells)  # quotes \r and \n
    return row.getvalue().removesuffix("\r\n")
