"""Scenes for tests, and jobs that take small ones for large."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.ranks import call_main
from unet_ddp.extras.scenes import blocks, parts, process

WIDTH, HEIGHT = 300, 420
PART_ROWS = 50  # of about as many each: 9
TILE = ["--tile", "64", "--device", "cpu"]


@contextlib.contextmanager
def small_is_large(columns: int = 128) -> Iterator[list[Path]]:
    """Predict small scenes in parts of at most so many columns; yield the files of those that are written."""
    written = list[Path]()
    write = parts.Parts.write

    def note(self: parts.Parts, key: parts.PartKey, ids: Any) -> None:
        write(self, key, ids)
        written.append(self.path(key))

    with (
        mock.patch.object(process, "LARGE", 1),
        mock.patch.object(blocks, "STREAMED", 1),
        mock.patch.object(parts, "ROWS", PART_ROWS),
        mock.patch.object(blocks, "count_blocks", lambda *_: -(-WIDTH // columns)),
        mock.patch.object(process, "count_blocks", lambda *_: -(-WIDTH // columns)),
        mock.patch.object(parts.Parts, "write", note),
    ):
        yield written


def predict_parts(folder: str, argv: list[str]) -> tuple[int, str, str, int]:
    """Run predict.py on one rank; return its status, output and errors, and how many parts it wrote."""
    with small_is_large() as written:
        found = call_main("predict", argv, folder)
    return (*found, len(written))


def die_after(count: int, folder: str, argv: list[str]) -> None:
    """Run predict.py in this process, which is killed once it has written so many parts."""
    with small_is_large() as written:
        save = parts.Parts.write

        def stop(self: parts.Parts, key: parts.PartKey, ids: Any) -> None:
            if len(written) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            save(self, key, ids)

        with mock.patch.object(parts.Parts, "write", stop):
            call_main("predict", argv, folder)
