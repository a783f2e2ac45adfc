"""Python in what a container of deploy/Dockerfile is: python tests/image.py FOLDER ARGUMENTS ...

FOLDER has app/, the working folder, with checkpoints/, the volume; and site/ with the installed wheel. The root is
read-only, /tmp is empty and writable, and the user has no name.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.homes import BIND, NOBODY, READ_ONLY, REMOUNT, mount, own_mounts


def enter(folder: Path) -> None:
    """Let this process live in the image."""
    own_mounts()
    places = {Path(sys.base_prefix), Path(sys.prefix), folder}
    places |= {Path(name) for name in sys.path if Path(name).is_dir()}
    handles = {place: os.open(place, os.O_RDONLY) for place in sorted(places)}
    volume = folder / "app" / "checkpoints"
    os.chown(volume, NOBODY, NOBODY)
    handle = os.open(volume, os.O_RDONLY)
    closed = {path for place in places for path in place.parents if not path.stat().st_mode & 1}
    hiding = {Path("/tmp"), *closed}
    for hidden in (path for path in hiding if hiding.isdisjoint(path.parents)):
        mount("tmpfs", hidden, "tmpfs", 0, "mode=1777" if hidden == Path("/tmp") else "mode=755")
    for place, opened in handles.items():
        if not place.is_dir():
            place.mkdir(parents=True)
        mount(f"/proc/self/fd/{opened}", place, None, BIND)
        mount(None, place, None, REMOUNT | READ_ONLY | BIND)
    mount(f"/proc/self/fd/{handle}", volume, None, BIND)
    mount(None, "/", None, REMOUNT | READ_ONLY | BIND)
    os.chdir(folder / "app")
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    enter(folder)
    own = {"HOME", "TMPDIR", "XDG_CACHE_HOME", "PYTHONPATH"}
    kept = {name: value for name, value in os.environ.items() if name not in own}
    image = {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder / "site")}
    os.execve(sys.executable, [sys.executable, *sys.argv[2:]], {**kept, **image})
