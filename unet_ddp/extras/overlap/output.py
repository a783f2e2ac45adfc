"""Masks of classes that overlap: a TIFF with a page for each class, or a PNG for each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Mask
from unet_ddp.data.readers.read import read_mask
from unet_ddp.extras.outputs.probabilities import name_parts
from unet_ddp.extras.overlap.bits import join_planes
from unet_ddp.files import replacing, write_errors
from unet_ddp.prediction.outputs.base import ADVICE, ImageFiles
from unet_ddp.prediction.outputs.image_files import PROGRAM
from unet_ddp.prediction.outputs.mask import MaskFile, write_mask
from unet_ddp.prediction.prediction import Prediction

_BINARY = Labels((0, 255))


class ClassMasks(MaskFile):
    """White where a class is. A TIFF of an image on a map has bands in place of pages, and its place."""

    @cached_property
    def _endings(self) -> list[str]:
        return [f"_mask_{name}.png" for name in name_parts(self.labels.class_names)]

    def files(self, image: ImageFiles) -> Sequence[Path]:
        """Return the name of the TIFF, or of a PNG for each class."""
        if image.mask.suffix.lower() != ".png":
            return [image.mask]
        return [image.named(ending) for ending in self._endings]

    def read(self, image: ImageFiles) -> Mask:
        """Return the mask of an earlier prediction."""
        import tifffile

        paths, count = self.files(image), self.labels.num_classes
        if len(paths) == count:
            return join_planes([read_mask(path) > 0 for path in paths], count)
        return join_planes(tifffile.imread(paths[0]) > 0, count)

    def write(self, image: ImageFiles, prediction: Prediction) -> None:
        """Write the masks of the classes."""
        import tifffile

        paths, planes = self.files(image), self.labels.planes(prediction.mask)
        if len(paths) == self.labels.num_classes:
            for path, plane in zip(paths, planes, strict=True):
                mark = image.marks.get(path, image.mark)
                write_mask(plane.view(np.uint8), _BINARY, path, mark=mark)
            return
        place = image.source.place
        how: Any = {"photometric": "minisblack", "compression": "zlib", "metadata": None}
        if mark := image.marks.get(paths[0], image.mark):
            how["software"] = f"{PROGRAM} {mark}"
        with write_errors(paths[0], ADVICE), replacing(paths[0]) as temporary:
            if place is not None:
                bands = np.stack([plane * np.uint8(255) for plane in planes])
                tifffile.imwrite(temporary, bands, planarconfig="separate", **how)
                place.write_to(temporary, None)
                return
            with tifffile.TiffWriter(temporary) as file:
                for name, plane in zip(self.labels.class_names, planes, strict=True):
                    page = plane * np.uint8(255)
                    title = name.encode(errors="backslashreplace")  # tifffile takes text if ASCII
                    file.write(page, description=title, contiguous=False, **how)
