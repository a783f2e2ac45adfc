"""Images that a network was trained on, by the split.csv beside its checkpoint."""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path

from unet_ddp.data.pairs import Pairs
from unet_ddp.errors import UserError, count_of


def warn_of_trained(source: Path, pairs: Pairs) -> list[str]:
    """Return a warning if the run of the checkpoint `source` was trained on images of `pairs`; else nothing.

    Files of this machine are compared by their paths, so copies in another folder are not found. Runs on packs,
    windows and storage have no split.csv.
    """
    real_folder = cache(os.path.realpath)  # many images have one

    def resolve(path: Path) -> tuple[str, str]:
        real = Path(os.path.realpath(path)) if path.is_symlink() else path  # few are
        return real_folder(real.parent), real.name

    try:
        path = source.with_name("split.csv")
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = [*csv.DictReader(file)]
        trained = {resolve(Path(row["image"])) for row in rows if row["split"] == "training"}
    except (UserError, OSError, KeyError, csv.Error):  # an object that is not there is a UserError
        return []
    files = (pair.image for pair in pairs if type(pair.image) is type(Path()))  # not of a pack
    count = sum(resolve(image.absolute()) in trained for image in files)
    if not count:
        return []
    what = f"{count} of these {count_of(len(pairs), 'image')}"
    return [
        f"warning: it was trained on {what}, which it knows: the score on new images may be lower"
    ]
