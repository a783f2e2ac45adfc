"""Files of microscopes' own programs: not read here, but known by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

SUFFIXES = {
    ".czi", ".ims", ".lif", ".lsm", ".mrxs", ".nd2", ".ndpi", ".oib", ".oif", ".oir", ".scn", ".sld",
    ".svs", ".vsi", ".zvi",
}  # fmt: skip
"""The endings of their files."""


def advise_export(paths: Iterable[Path | str], otherwise: str) -> str:
    """Return what to do with files that can't be read, or `otherwise` if none is a microscope's."""
    found = sorted(SUFFIXES.intersection(Path(path).suffix.lower() for path in paths))
    if not found:
        return otherwise
    return f"a microscope's own format ({', '.join(found)}): export as TIFF"
