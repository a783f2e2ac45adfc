"""A copy of a run at an address, of which a report is written."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unet_ddp.extras.cloud.objects import list_objects, put, read
from unet_ddp.extras.cloud.pointer import COPIED, StoredRun, find_newest
from unet_ddp.files import temporary_folder


@contextmanager
def local_run(place: Path) -> Iterator[Path]:
    """Yield a folder with the files of the run at `place`; its report is uploaded there at the end."""
    names = {name for name, _, _ in list_objects(place, is_deep=False)}
    with tempfile.TemporaryDirectory(dir=temporary_folder()) as temporary:
        folder = Path(temporary, place.name)
        folder.mkdir()
        for name in names & {*COPIED, "config.yaml"}:
            (folder / name).write_bytes(read(find_newest(place / name)))
        yield folder
        run = StoredRun(place)
        if run.open() is not None:
            run.record_files(["report.html"])
        put(place / "report.html", folder / "report.html")
