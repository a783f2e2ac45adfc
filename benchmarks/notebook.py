"""A notebook from a Python file in the percent format: `# %%` begins a cell, `# %% [markdown]` one of text."""

from __future__ import annotations

import json
import re
from typing import Any


def make_notebook(source: str) -> str:
    """Return the file of a notebook, without outputs, so that equal sources give equal bytes."""
    begin = r"^# %%( \[markdown\])?\n"
    _, *parts = re.split(begin, source, flags=re.M)
    kinds, texts = parts[::2], parts[1::2]
    notebook = {
        "cells": [
            _make_text_cell(text) if kind else _make_code_cell(text)
            for kind, text in zip(kinds, texts, strict=True)
        ],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 4,  # the last one whose cells need no random id
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False)


def _make_text_cell(text: str) -> dict[str, Any]:
    lines = [re.sub(r"^# ?", "", line) for line in text.strip().splitlines(keepends=True)]
    return {"cell_type": "markdown", "metadata": {}, "source": lines}


def _make_code_cell(text: str) -> dict[str, Any]:
    lines = text.strip().splitlines(keepends=True)
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": lines,
    }
