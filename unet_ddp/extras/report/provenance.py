"""The record of a run, in words for the report and the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unet_ddp.files.closed import find_closed
from unet_ddp.runs.record import NAME, read_record

_SHOWN = 5  # the last starts


def list_provenance(folder: Path) -> list[tuple[str, str]]:
    """Return rows for the page about a run: when and how it was made, and from which data; none without a record."""
    record = read_record(folder / NAME)
    starts = record.get("starts", [])
    rows = []
    for start in starts[-_SHOWN:]:
        what = f"resumed after step {start.get('step')}" if start.get("step") else "started"
        rows += [
            (what, f"{start.get('date')}, {_describe_end(start)}"),
            ("command", f"{start.get('command')}, in {start.get('folder')}"),
            ("program", ", ".join(f"{name} {each}" for name, each in _list_versions(start))),
            ("machine", _describe_machine(start)),
        ]
    if starts:
        data, settings = record["data"], record["settings"]
        places = [settings.get(name) for name in ("images", "masks", "list")]
        counts = f"{data.get('training')} images to train on, {data.get('validation')} to validate"
        rows.append(("data", ", ".join([*map(str, filter(None, places)), counts])))
        rows.append(("fingerprint of the data", str(data.get("fingerprint"))))
    return rows


def warn_of_damage(folder: Path) -> list[str]:
    """Return a line for each file of a run that this user may not read, and if its record is damaged."""
    path = folder / NAME
    closed = [each for each in map(find_closed, (path, folder / "split.csv")) if each]
    if closed:
        return [f"warning: {each}" for each in closed]
    if read_record(path) or not path.is_file():
        return []
    return [f"warning: {path}: damaged, so versions, machine and end are unknown; copy it again"]


def summarise_provenance(folder: Path) -> dict[str, str]:
    """Return the last start of a run in cells for a table, by the names of its columns; empty without a record."""
    starts = read_record(folder / NAME).get("starts", [])
    if not starts:
        return {}
    start, end = starts[-1], starts[-1]["end"]
    date = str(start.get("date")).partition("+")[0].replace("T", " ")
    state = " ".join(map(str, filter(None, [end.get("state"), end.get("signal")])))
    versions = dict(_list_versions(start))
    return {"date": date, "end": state, "machine": _describe_machine(start), **versions}


def _list_versions(start: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the versions of a start by name; a commit with changes has a + behind it."""
    versions = [("unet_ddp", start.get("unet_ddp"))]
    if start.get("commit"):
        changes = "+" if start.get("has_changes") else ""
        versions.append(("commit", f"{str(start['commit'])[:12]}{changes}"))
    versions += [("python", start.get("python")), *start["packages"].items()]
    versions.append(("CUDA", start.get("cuda")))
    return [(name, str(each)) for name, each in versions if each]


def _describe_machine(start: Mapping[str, Any]) -> str:
    return f"{start.get('host')}, {start.get('processes')} x {start.get('gpu') or 'CPU'}"


def _describe_end(start: Mapping[str, Any]) -> str:
    end = start["end"]
    words = [end.get("state"), end.get("signal"), end.get("date"), end.get("error")]
    return " ".join(map(str, filter(None, words)))
