"""``python -m unet_ddp import``: turn annotation files into masks to train on.

python -m unet_ddp import instances.json --images DIR --output masks
torchrun --nproc_per_node=4 train.py --list masks/pairs.csv --palette masks/palette.csv
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tqdm import tqdm

from unet_ddp.cli import parse
from unet_ddp.data.csv_cells import format_row
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Mask
from unet_ddp.data.pairs import CLASSES_MARK
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError, count_of, hides_bars, join_some, print_lines, shorten
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage
from unet_ddp.extras.annotations.imagej_rois import list_rois
from unet_ddp.extras.annotations.masks import (
    NameFinder,
    derive_labels,
    list_images,
    only_boxes,
    open_folders,
)
from unet_ddp.extras.annotations.painters import CROWD, InstancePainter, Painter, PlanePainter
from unet_ddp.extras.annotations.readers import list_geojson, list_json, open_annotations
from unet_ddp.files import (
    as_local_path,
    check_new_folder,
    ended_by_sigterm,
    replacing_folder,
    write_text,
)
from unet_ddp.prediction.outputs.mask import write_mask
from unet_ddp.settings import flag

_SHOWN = 9  # names of classes
_BINARY = Labels((0, 255))


@dataclass(frozen=True)
class ImportConfig:
    """Turn annotation files into masks to train on.

    Reads COCO and Label Studio (.json), Labelme (a folder), QuPath (.geojson), YOLO segmentation (data.yaml), CVAT for
    images (.xml), ROIs of ImageJ (RoiSet.zip), run lengths (.csv), and a mask for each class or object. An outline that
    crosses itself is filled by the even-odd rule.
    """

    file: Annotated[str, tyro.conf.Positional, flag("FILE")]
    """The annotations: a file, the folder of Labelme's, QuPath's or ImageJ's files, or that of masks."""
    images: Annotated[str, flag("DIR")]
    """Folder of the images; its sub-folders are searched."""
    output: Annotated[str, flag("DIR", "-o")]
    """New folder for the masks, palette.csv and pairs.csv."""
    overlap: Literal["later", "small", "keep"] = "later"
    """Which of two objects is above. later: the later one in the file, in CVAT by its z-order, of folders by name; small: the smaller one; keep: both, for train.py --overlap."""
    instances: bool = False
    """Write each object's number, 16 bit, in place of its class; with several classes, class * 1000000 + number, 32 bit."""
    empty: Literal["listed", "all", "none"] = "listed"
    """Which images without objects get an empty mask: those in the file, all in --images, or none."""
    palette: Annotated[str | None, flag("FILE")] = None
    """The palette.csv of another import, for the same classes."""
    rle_order: Literal["rows", "columns"] | None = None
    """Pixel order of a table of run lengths; default: rows for img,rle_mask, as predict.py --rle writes; columns for others."""
    skip_missing: bool = False
    """Leave out annotated images that are not in --images."""

    def check(self) -> None:
        """Refuse numbers of objects that overlap: a pixel has one number."""
        if self.instances and self.overlap == "keep":
            raise UserError("--instances and --overlap keep: use one of them")


def main(argv: Sequence[str]) -> int:
    """Write the masks that `argv` asks for, and return the exit status."""
    config = parse(ImportConfig, argv, prog="python -m unet_ddp import")
    output = as_local_path(config.output, "--output")
    check_new_folder(output)
    job = _Import(config)
    with ended_by_sigterm(), replacing_folder(output) as folder:
        job.write(folder)
    print_lines(*job.summarize())
    return 0


class _Import:
    """The masks of a file of annotations."""

    def __init__(self, config: ImportConfig) -> None:
        self.config = config
        self.file = as_local_path(config.file, "FILE")
        self.images = list_images(as_local_path(config.images, "--images"))
        palette = as_local_path(config.palette, "--palette") if config.palette else None
        is_small = config.overlap == "small"
        with self._errors():
            listing = list_json, list_rois, list_geojson
            if self.file.is_dir() and not any(find(self.file) for find in listing):
                self.annotations = open_folders(self.file, self.images)
            else:
                self.annotations = open_annotations(self.file, self.images, config.rle_order)
            self.labels = derive_labels(self.annotations, palette)
            if config.overlap == "keep":
                self.painter: Painter = PlanePainter(self.labels)
            elif config.instances:
                self.painter = InstancePainter(self.labels, small_over_large=is_small)
            else:
                self.painter = Painter(self.labels, small_over_large=is_small)
        self.written = self.missing = 0

    @contextmanager
    def _errors(self, image: str = "") -> Iterator[None]:
        """Turn any error of the file's content into a UserError of one line."""
        place = f"{self.file}: "
        if image:
            place += f"image {shorten(image)}: "
        try:
            yield
        except UserError as error:
            if str(error).startswith((str(self.file), "--palette", "FILE")):
                raise
            raise UserError(f"{place}{error}") from None
        except OSError as error:
            where = error.filename or self.file
            raise UserError(f"{where}: {error.strerror or error}; name a file to read") from None
        except Exception:  # whatever a damaged file makes of the readers
            raise UserError(
                f"{place}damaged, or not as other programs write it; correct it, or export it again"
            ) from None

    def write(self, folder: Path) -> None:
        """Write masks, pairs.csv and palette.csv to a folder that will be renamed."""
        output = Path(self.config.output).resolve()
        split = self.annotations.split
        pairs = [["image", "mask", *(["split"] if split else [])]]
        for name, image in self._find_images():
            path = self.images[name]
            size = Source(path).header.size
            with self._errors(image.name):
                mask = self.painter.paint(image, size)
            mask_name = self._write_mask(folder, name, mask)
            path = path.parent.resolve() / path.name  # a link's target may have another suffix
            side = [split[name]] if split else []
            pairs.append([os.path.relpath(path, output), mask_name, *side])
        self.written = len(pairs) - 1
        if not self.written:
            raise UserError(f"{self.file}: annotates none of the images in {self.config.images}")
        counts = self.painter.counts
        if counts["skipped"] and not counts["objects"]:
            raise UserError(f"{self.file}: {only_boxes(counts['skipped'])}")
        if counts["crowds"] and counts["crowds"] == counts["objects"]:
            raise UserError(
                f"{self.file}: all {counts['objects']} objects are crowds (iscrowd 1), which have no numbers; set iscrowd to "
                "0, or export 'CVAT for images' from CVAT"
            )
        _write_rows(folder / "pairs.csv", pairs)
        if type(self.painter) is Painter:
            colours = ["#{:02x}{:02x}{:02x}".format(*colour) for colour in self.labels.colours]
            _write_rows(folder / "palette.csv", zip(self.labels.class_names, colours, strict=True))

    def _write_mask(self, folder: Path, name: str, mask: Mask) -> str:
        """Write the mask of an image; return its path below the folder, * for that of each class."""
        if isinstance(self.painter, PlanePainter):
            for class_folder, plane in self.painter.split(mask):
                write_mask(plane, _BINARY, folder / class_folder / f"{name}.png")
            return f"{CLASSES_MARK}/{name}.png"
        labels = self.painter.labels
        mask_name = f"{name}.{labels.mask_suffix}"
        write_mask(mask, labels, folder / mask_name)
        return mask_name

    def _find_images(self) -> Iterator[tuple[str, AnnotatedImage]]:
        """Yield the images to write masks of, and their names."""
        finder = NameFinder(self.images)
        listed = set()
        images = self.annotations.read()
        with self._errors():
            for image in tqdm(images, "importing", unit="image", leave=False, disable=hides_bars()):
                name = finder.find(image.name)
                if name is None:
                    if not self.config.skip_missing:
                        raise UserError(
                            f"image {shorten(image.name)} is not in {self.config.images}; add it, or use "
                            "--skip-missing"
                        )
                    self.missing += 1
                    continue
                if name in listed:
                    raise UserError(f"image {shorten(image.name)}: {name} is annotated twice")
                listed.add(name)
                if image.regions or self.config.empty != "none":
                    yield name, image
        if self.config.empty == "all":
            for name in self.images:
                if name not in listed:
                    yield name, AnnotatedImage(name, None)

    def summarize(self) -> Iterator[str]:
        """Yield what was written, what was not, and the command to train on it."""
        counts, output = self.painter.counts, self.config.output
        classes = ", ".join(self.labels.class_names)
        masks, objects = count_of(self.written, "mask"), count_of(counts["objects"], "object")
        yield f"{output}: {masks} of {objects}; classes {classes}"
        for count, text in self._list_notes():
            if count:
                yield f"{count} {text}"
        yield from self.annotations.notes
        if empty := [*self.painter.empty_classes]:
            yield f"{count_of(len(empty), 'class')} without any object: {join_some(empty, _SHOWN)}"
        flags = shlex.join(["--list", f"{output}/pairs.csv"])
        if isinstance(self.painter, PlanePainter):
            for name, folder in zip(self.painter.bodies, self.painter.folders, strict=True):
                if name != folder:
                    yield f"class {name} is in the folder {folder}"
            if self.written == len(self.images) and not self.annotations.split:
                flags = shlex.join(["--images", str(self.config.images), "--masks", str(output)])
            flags += " --overlap"
        elif self.config.instances:
            flags += f" --instances --class-names {shlex.join(self.painter.bodies)}"
            if counts["crowds"]:
                flags += f" --ignore-index {CROWD}"
        else:
            flags += " " + shlex.join(["--palette", f"{output}/palette.csv"])
        yield f"train on them with: train.py {flags}"

    def _list_notes(self) -> list[tuple[int, str]]:
        """Return what was left out or changed, and how often."""
        counts = self.painter.counts
        return [
            (self.missing, "annotated images are not in --images: left out"),
            (len(self.images) - self.written, "images have no mask; --empty all writes empty ones"),
            (counts["clipped"], "objects reach beyond their image: clipped"),
            (
                counts["unseen"],
                "objects have no pixel: their outlines are lines, too small, or fractions of the sides",
            ),
            (
                counts["first pixel"],
                "objects are only the image's first pixel: if their outlines are in fractions of the sides, multiply x by "
                "the width and y by the height",
            ),
            (counts["layers"], "masks have one colour: their objects are what is opaque"),
            (counts["skipped"], "boxes, ellipses, lines or points have no outline: left out"),
            (
                0 if self.config.overlap == "keep" else counts["several"],
                "objects are of several classes: only their first one is kept; --overlap keep writes all",
            ),
            (
                counts["crowds"],
                "objects are crowds (iscrowd), or to ignore: not learnt. CVAT marks painted objects so: export "
                "'CVAT for images' for these",
            ),
            (counts["ignored"], "regions to ignore are not kept where classes overlap: left out"),
        ]


def _write_rows(path: Path, rows: Iterable[Sequence[str]]) -> None:
    write_text(path, "".join(f"{format_row(row)}\n" for row in rows))
