"""The gate of an export: its masks are scored beside the checkpoint's, in the runtime that it is for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.masks import IGNORE_ID, Ids, Mask
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import RunError, hides_bars
from unet_ddp.extras.onnx.backend import OnnxBackend
from unet_ddp.extras.onnx.runtimes import Run, open_run, open_session
from unet_ddp.heads import find_head
from unet_ddp.metrics.scores import Scores, Tally, show, total
from unet_ddp.prediction.backends import LoadedModel
from unet_ddp.prediction.predictor import Predictor

LEAST_EQUAL = 0.95
"""Share of the pixels that must be as the checkpoint's, but in int8: the Dice of a weak network falls by nothing."""
_OF_QGIS = "seg_thresh", "standardization_mean", "standardization_std"
_LEAST = 1e-7  # probability, whose logarithm is not infinite
Predict = Callable[[Path], Mask]
"""The mask (H, W) of an image file: class ids, of objects their numbers."""


@dataclass
class Verdict:
    """The masks of an exported network, and its checkpoint's, of the same images."""

    classes: list[str]
    names: list[str]
    """Of the images, in the order of the counts."""
    expected: list[Any] = field(default_factory=list)
    """Confusion matrix of the checkpoint's mask of each image."""
    found: list[Any] = field(default_factory=list)
    equal: list[float] = field(default_factory=list)
    """Share of the pixels in which the two masks of an image are equal."""
    seconds: list[float] = field(default_factory=list)
    objects: tuple[list[Any], list[Any]] = field(default_factory=lambda: ([], []))
    """Counts of objects in the checkpoint's masks and in these, where there are objects."""

    @property
    def precision(self) -> tuple[float, float] | None:
        """AP of objects at IoU 0.5, of the checkpoint and of the export; None without objects."""
        if not self.objects[0]:
            return None
        expected, found = (float(np.nan_to_num(_precision(each), nan=1.0)) for each in self.objects)
        return expected, found

    @property
    def dice(self) -> tuple[float, float]:
        """Dice of the checkpoint and of the export; of objects with their borders, so without the border class."""
        return _dice(sum(self.expected)), _dice(sum(self.found))

    @property
    def fall(self) -> float:
        """By how much Dice falls, or the AP of objects, whichever falls more."""
        return max(before - after for before, after in (self.dice, self.precision or (0.0, 0.0)))

    @property
    def rate(self) -> float:
        """Images a second, without the first one, for which a runtime prepares itself."""
        return 1 / float(np.mean(self.seconds[1:] or self.seconds))

    @property
    def shares(self) -> float:
        """Share of all images' pixels in which the masks are equal."""
        return float(np.mean(self.equal))

    def to_dict(self) -> dict[str, float]:
        """Return the figures for the file's metadata."""
        return {
            "images": len(self.names),
            "dice": self.dice[1],
            "checkpoint_dice": self.dice[0],
            "dice_difference": self.dice[1] - self.dice[0],
            "equal_pixels": self.shares,
            **({"ap_50": self.precision[1]} if self.precision else {}),
        }

    def summarise(self) -> str:
        """Return a line's words: Dice, its change and the share of equal pixels."""
        before, dice = self.dice
        objects, classes = "", ""
        if self.precision:
            objects = f"AP {self.precision[1]:.4f} ({self.precision[1] - self.precision[0]:+.4f}), "
            classes = " without the border class"
        return (
            f"{objects}Dice {dice:.4f} ({dice - before:+.4f}){classes}, {100 * self.shares:.3f} % of pixels equal, "
            f"{self.rate:.2f} images/s"
        )

    def explain(self) -> str:
        """Return a line's words about a fall: both figures, all classes, and the image with the largest."""
        before = Scores.from_confusion(sum(self.expected)).dice_per_class
        after = Scores.from_confusion(sum(self.found)).dice_per_class
        classes = []
        for name, a, b in zip(self.classes, before, after, strict=True):
            classes.append(f"{name} {show(a)} to {show(b)}")
        images = zip(self.names, map(_dice, self.expected), map(_dice, self.found), strict=True)
        worst, high, low = max(images, key=lambda image: image[1] - image[2])
        expected, found = self.dice
        if self.precision and self.precision[0] - self.precision[1] > expected - found:
            had, has = (total(each) for each in self.objects)  # type: Any, Any
            return (
                f"AP of objects falls from {self.precision[0]:.4f} to {self.precision[1]:.4f} ({had.predicted} "
                f"objects to {has.predicted}, {had.merged} merged to {has.merged}, {had.split} split to {has.split})"
            )
        return (
            f"Dice falls from {expected:.4f} to {found:.4f} ({', '.join(classes)}); worst image: "
            f"{worst}, {high:.4f} to {low:.4f}"
        )


def judge(
    networks: Mapping[str, Predict], checkpoint: Predict, data: SegmentationDataset
) -> dict[str, Verdict]:
    """Return for each exported network its verdict on the images of `data`, at their own size."""
    classes = data.labels.class_names
    names = [*data.pairs.names()]
    counts = find_head(data.labels).counts
    verdicts = {name: Verdict(classes, names) for name in networks}

    def confuse(ids: Ids, truth: Ids) -> Tensor:
        predicted, true = torch.from_numpy(ids)[None], torch.from_numpy(truth)[None]
        return counts.confuse(predicted, true, len(classes))

    labels, objects = data.labels, data.labels.objects
    for row, pair in enumerate(tqdm(data.pairs, unit="image", leave=False, disable=hides_bars())):
        truth = data.read_truth(row)
        if objects is not None:
            numbers = objects.find_numbers(data.read_codes(pair.mask, truth.shape, 1.0))
            # Masks of objects have no border class.
            truth = np.where(truth == IGNORE_ID, truth, labels.ids_of(numbers))
        with data.pairs.local(pair.image) as path:
            expected = checkpoint(path)
            expected_ids = labels.ids_of(expected)
            for name, verdict in verdicts.items():
                began = time.perf_counter()
                found = networks[name](path)
                verdict.seconds.append(time.perf_counter() - began)
                found_ids = labels.ids_of(found)
                verdict.equal.append(float((found_ids == expected_ids).mean()))
                verdict.expected.append(confuse(expected_ids, truth))
                verdict.found.append(confuse(found_ids, truth))
                if objects is None:
                    continue
                for mask, tallies in zip((expected, found), verdict.objects, strict=True):
                    counted = np.where(truth == IGNORE_ID, mask.dtype.type(0), mask)
                    tallies.extend(objects.score(counted, numbers))
    return verdicts


def _precision(tallies: list[Any]) -> float:
    """Return the AP at IoU 0.5 of all objects; nan where none is, and none is found."""
    tally: Tally = total(tallies)
    return float(tally.score)


def _dice(table: Any) -> float:
    """Return the Dice of a confusion matrix; 1 where no class is to be found, and none is."""
    dice = Scores.from_confusion(table).dice
    return 1.0 if np.isnan(dice) else dice


def open_predict(path: Path, form: str, runtime: str, model: LoadedModel) -> Predict:
    """Return what predicts class ids by an exported file, in the form that a flag names, in a runtime."""
    cpu = torch.device("cpu")
    if not form:
        backend = OnnxBackend(path, cpu, runtime)
        check_facts(backend, model)
        return with_network(replace(model, backend=backend))
    session = open_session(path, cpu)
    run = open_run(session, path, runtime)
    if form == "--qgis":
        facts = session.get_modelmeta().custom_metadata_map
        plugin = PlanesBackend(model, run, {name: json.loads(facts[name]) for name in _OF_QGIS})
        return with_network(replace(model, backend=plugin, threshold=plugin.threshold))
    if form == "--bioimageio":  # it resizes by itself
        pixels = replace(model.preprocessing, scale=1.0)
        return with_network(replace(model, backend=PlanesBackend(model, run), preprocessing=pixels))

    def predict(image: Path) -> Mask:
        with Source(image) as source:
            pixels, _ = source.image(model.preprocessing.format)
        mask = run(pixels[None])[0]
        if model.labels.rgb:
            mask = mask.astype(np.int32) @ [1 << 16, 1 << 8, 1]
        return model.labels.to_ids(mask, image)

    return predict


def with_network(model: LoadedModel) -> Predict:
    """Return what predicts class ids by a loaded network."""
    predictor = Predictor([model], device=torch.device("cpu"))
    return lambda image: predictor(image).mask.copy()  # torch warns of one that is read-only


def check_facts(backend: OnnxBackend, model: LoadedModel) -> None:
    """Raise a RunError if a file describes another network than its checkpoint's."""
    own = {
        "labels": model.labels,
        "preprocessing": model.preprocessing,
        "threshold": model.threshold,
        "stride": model.backend.stride,
    }
    for name, value in own.items():
        found = vars(backend.facts)[name]
        if found != value:
            raise RunError(
                f"{backend.path}: not kept: its {name} would be read as {found}; the checkpoint has {value}"
            )


class PlanesBackend:
    """A file from images (N, C, H, W) to probabilities, given images as other programs do.

    QGIS's plugin gives shares of 255 as its `facts` say, and of two classes takes the second's probability alone.
    """

    input_device = torch.device("cpu")

    def __init__(
        self, model: LoadedModel, run: Run, facts: Mapping[str, Any] | None = None
    ) -> None:
        self.stride, self.bytes_per_pixel = model.backend.stride, model.backend.bytes_per_pixel
        self.may_overlap, self.run, self.facts = model.labels.may_overlap, run, facts
        self.threshold = (facts or {}).get("seg_thresh") or None
        """By which the plugin decides between two classes."""

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return logits of the probabilities, see `Backend`."""
        images = pixels.numpy().transpose(0, 3, 1, 2)
        if self.facts:
            mean, std = (np.float32(self.facts[name]).reshape(1, -1, 1, 1) for name in _OF_QGIS[1:])
            images = (images * np.float32(1 / 255) - mean) / std
        found = torch.from_numpy(self.run(np.ascontiguousarray(images)))
        if found.shape[1] == 1:
            found = torch.cat([1 - found, found], dim=1)
        if self.may_overlap:
            return found.logit(_LEAST)
        return found.clamp(min=_LEAST).log()
