"""Rows of CSV files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from pathlib import Path

from unet_ddp.errors import UserError
from unet_ddp.files.contents import read_text

_SEPARATORS = ",;\t"
_LONGEST = 4096  # of a cell, in characters; no path is longer


def read_rows(
    path: Path, flag: str, *, errors: str = "strict", longest: int = _LONGEST
) -> list[tuple[int, list[str]]]:
    """Return the rows of a file that have text, each with the number of its last line.

    Cells are separated by commas, or by semicolons or tabs where the first row has no comma, as Excel
    writes them. `errors` is that of `open`, `longest` the largest length of a cell; messages name the `flag`.
    """
    limit = csv.field_size_limit(longest)
    try:
        text = read_text(
            path, "a CSV file", advice="give a CSV file (Excel: save as CSV UTF-8)", errors=errors
        )
        first = next(filter(str.strip, text.splitlines()), "")
        sheet = first.strip().casefold()
        delimiter = next((mark for mark in _SEPARATORS if mark in first), ",")
        if re.fullmatch(r"sep=.", sheet):  # a line for Excel
            delimiter = sheet[-1]
        reader = csv.reader(
            io.StringIO(text, newline=""), skipinitialspace=True, delimiter=delimiter
        )
        rows = [(reader.line_num, row) for row in reader if any(row)]
        return rows[sheet.startswith("sep=") :]
    except UserError as error:
        raise UserError(f"{flag} {error}") from None
    except csv.Error as error:
        said = str(error)
        if "field limit" in said:
            said = f"line {reader.line_num}: a cell has more than {longest} characters"
        raise UserError(f"{flag} {path}: {said}; give a CSV file") from None
    except OSError as error:
        raise UserError(f"{flag} {path}: {error.strerror or error}; give a CSV file") from None
    finally:
        csv.field_size_limit(limit)


def format_row(cells: Iterable[object]) -> str:
    """Return a row without its line's end."""
    row = io.StringIO(newline="")
    csv.writer(row).writerow(cells)  # quotes \r and \n
    return row.getvalue().removesuffix("\r\n")
