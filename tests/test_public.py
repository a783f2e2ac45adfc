"""docs/reference/public.md lists what later versions keep: the code has all of it, and shows nothing else."""

from __future__ import annotations

import re

import pytest

import unet_ddp
from tests.test_docs import ROOT
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.extras.cloud import pointer
from unet_ddp.extras.onnx import backend
from unet_ddp.extras.packs import pack_columns
from unet_ddp.plugins.built_in import BUILT_IN
from unet_ddp.plugins.built_in.commands import COMMANDS
from unet_ddp.runs import record

PAGE = (ROOT / "docs/reference/public.md").read_text(encoding="utf-8")


def list_names(heading: str) -> list[str]:
    """The names in the first column of the table under a heading."""
    section = re.split(r"^## ", PAGE, flags=re.M)
    (text,) = (each for each in section if each.startswith(f"{heading}\n"))
    rows = re.findall(r"^\| (`.+?) \|", text, re.M)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("Python", set(unet_ddp.__all__)),
        ("Commands", set(COMMANDS)),
    ],
)
def test_the_lists_are_those_of_the_code(heading: str, names: set[str]) -> None:
    listed = list_names(heading)
    assert len(listed) == len(set(listed)) and set(listed) == names


def test_the_points_are_those_that_the_page_of_own_parts_describes() -> None:
    page = (ROOT / "docs/own_parts.md").read_text(encoding="utf-8")
    points = set(re.findall(r"`(unet_ddp\.\w+)` \|$", page, re.M))
    assert set(list_names("Parts of your own")) == points
    assert {point.partition(".")[2] for point in points} <= set(BUILT_IN)


def test_every_file_has_the_format_that_is_kept() -> None:
    page = (ROOT / "docs/files.md").read_text(encoding="utf-8")
    (number,) = re.findall(r"^\| checkpoints, .* \| (\d+), the key `format` \|$", page, re.M)
    kept = (checkpoint, record, pack_columns, pointer, backend)
    assert {module.FORMAT for module in kept} == {int(number)}
