"""The probabilities of each class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from unet_ddp.data.masks import Band, allocate, reserve
from unet_ddp.files import replacing, write_errors
from unet_ddp.prediction.outputs.base import ADVICE, ImageFiles, Output, Receiver
from unet_ddp.prediction.prediction import Prediction

_PNG_LEVEL = 3  # of zlib: half the time of Pillow's 6, files hardly larger
_REFUSED = str.maketrans(dict.fromkeys('/\\:*?"<>|', "_"))  # by file systems
_LONGEST_NAME = 60  # bytes of a class's name in a file's


class Probabilities(Output):
    """One NPY file (C, H, W) float32 for each image, or a 16-bit PNG for each class (65535 for 1)."""

    @cached_property
    def _kind(self) -> str:
        return self.config.probabilities

    @cached_property
    def _endings(self) -> list[str]:
        if self._kind == "npy":
            return ["_probabilities.npy"]
        return [f"_probability_{name}.png" for name in name_parts(self.labels.class_names)]

    def files(self, image: ImageFiles) -> Sequence[Path]:
        """Return one npy, or one png for each class."""
        return [image.named(ending) for ending in self._endings]

    @contextmanager
    def watch(self, image: ImageFiles, prediction: Prediction) -> Iterator[Receiver]:
        """Yield what takes in the bands; the files are there at the end."""
        paths = self.files(image)
        shape = self.labels.num_classes, *prediction.size
        if self._kind == "npy":
            (path,) = paths
            with write_errors(path, ADVICE), replacing(path) as temporary:
                stored = np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
                with temporary.open("r+b") as file:
                    reserve(file.fileno())

                def keep(band: Band) -> None:
                    stored[:, band.rows] = band.probabilities

                yield keep
                stored.flush()
            return
        planes = allocate(shape, np.uint16)

        def keep_rounded(band: Band) -> None:
            planes[:, band.rows] = np.rint(band.probabilities * 65535).astype(np.uint16)

        yield keep_rounded
        for path, plane in zip(paths, planes, strict=True):
            with write_errors(path, ADVICE), replacing(path) as temporary:
                Image.fromarray(plane).save(temporary, format="PNG", compress_level=_PNG_LEVEL)


def name_parts(class_names: list[str]) -> list[str]:
    """Return the names as parts of file names, with the class ids before them if two were equal."""
    names = []
    for class_name in class_names:
        kept = class_name.strip("#").translate(_REFUSED)
        shown = "".join(each if each.isprintable() else "_" for each in kept)
        names.append(shown.encode()[:_LONGEST_NAME].decode(errors="ignore"))
    if len({name.casefold() for name in names}) < len(names):
        return [f"{k}_{name}" for k, name in enumerate(names)]
    return names
