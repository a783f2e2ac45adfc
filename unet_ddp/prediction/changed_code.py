"""Code of the user's own that has changed since a network's training: its checkpoint has the old text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from unet_ddp.data.readers.read import own_readers
from unet_ddp.plugins import describe_changes, is_same_code, read_sources


class ChangedCode(UserWarning):
    """Code of the user's own has changed since a network's training."""


def find_changes(network: str, source: Path, saved: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each text of the network, and of the user's own readers, that is another than the saved one."""
    readers = [("--reader", "readers", name) for name in own_readers() if name in saved]
    said = set[str]()
    for flag, point, name in [("--network", "networks", network), *readers]:
        texts = {each: text for each, text in read_sources(point, name).items() if each not in said}
        said |= texts.keys()
        for change in describe_changes(flag, name, texts, saved, is_same_code):
            yield (
                f"{source}: {change} since its training, so masks and scores may be others; the old text is in the "
                "file, under sources"
            )
