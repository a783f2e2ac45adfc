"""The place of a new pack, a folder or an address: it is whole, or nothing is left there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

from unet_ddp.errors import UserError, count_of, print_lines
from unet_ddp.extras.cloud import Url, delete, put
from unet_ddp.extras.packs.pack_files import INDEX, SHARD, list_files
from unet_ddp.files import check_new_folder, replacing_folder, temporary_folder, write_errors


@contextmanager
def new_pack(output: Path) -> Iterator[Path]:
    """Yield an address, or a new folder that becomes `output` if the block succeeds.

    Raises:
        UserError: there is something already; at an address, a pack.
    """
    if isinstance(output, Url):
        found = list_files(output)
        if INDEX in found:
            raise UserError(f"{output}: contains a pack already; use another --output")
        left: dict[str, None] = {}
        for name in sorted(found):
            match = SHARD.fullmatch(name)
            if match and match[1]:  # one without the name of an attempt is the user's
                left[f"shard-{match[1]}*.tar"] = None
        if left:
            print_lines(
                f"warning: {output}: has shards of {count_of(len(left), 'attempt')} that did not finish, "
                f"{', '.join(left)}: delete them, unless one still runs"
            )
        yield output
        return
    check_new_folder(output)
    if output.is_symlink() or os.path.ismount(output) or output.absolute() == Path.cwd():
        raise UserError(
            f"{output}: is a link, a mount point or the working folder, whose place no pack can take; name a new "
            "folder in it with --output"
        )
    for other in sorted(output.parent.glob(f".{escape(output.name)}.{'?' * 8}/")):
        print_lines(
            f"warning: {other}: an attempt that did not finish; delete it, unless it still runs"
        )
    with replacing_folder(output) as folder:
        yield folder


@contextmanager
def deleting_objects(output: Path, names: list[str]) -> Iterator[None]:
    """Delete the objects with these names if the block fails; an error says which are left."""
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        try:
            for name in names if isinstance(output, Url) else ():
                delete(output / name)
        except UserError as failure:
            left = names[0]
            if len(names) > 1:
                left += f", {names[-1]}"
            raise UserError(f"{error}; shards are left in {output}, {left}: {failure}") from None
        raise


@contextmanager
def shard_folder(output: Path) -> Iterator[Path]:
    """Yield the folder in which shards are written: `output`, or of an address a temporary one."""
    if not isinstance(output, Url):
        yield output
        return
    with (
        write_errors(temporary_folder(), "make room, or name another folder with TMPDIR"),
        tempfile.TemporaryDirectory(prefix="unet_ddp-", dir=temporary_folder()) as folder,
    ):
        yield Path(folder)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a file to write: `path`, or one that becomes this object if the block succeeds.

    Raises:
        UserError: it can't be put, or another pack's was put there.
    """
    with shard_folder(path.parent) as folder:
        file = folder / path.name
        yield file
        if not isinstance(path, Url):
            return
        try:
            put(path, file, replaces=False)
        except FileExistsError:
            raise UserError(
                f"{path.parent}: another pack was put there; use another --output"
            ) from None
