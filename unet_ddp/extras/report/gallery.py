"""The worst images as small pictures, with truth, prediction and their difference to lay over."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from unet_ddp.data.drawing import class_colours, to_rgb
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID, Colour, Ids, Mask
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
from unet_ddp.data.readers.resize import resize_nearest
from unet_ddp.evaluation.dataset import EvaluationDataset
from unet_ddp.evaluation.results import Evaluation, ImageRecord
from unet_ddp.evaluation.scoring import decide, decode, resize
from unet_ddp.metrics.scores import show
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.source import open_image

_MOST = 24  # pictures in a report
_LONGEST = 640  # pixels of a picture's longer side
_FALSE_POSITIVE, _FALSE_NEGATIVE, _IGNORED = (213, 94, 0), (0, 114, 178), (128, 128, 128)
"""Okabe and Ito's vermilion and blue, which colour-blind eyes see apart too; grey."""


@dataclass(frozen=True)
class Picture:
    """One image of the gallery; pictures are data URIs."""

    name: str
    score: float
    caption: str
    photo: str
    width: int
    height: int
    layers: dict[str, str]
    """Truth, prediction, difference: transparent but for the classes; overlay.css blends them."""


def make_gallery(
    evaluation: Evaluation, predictor: Predictor, dataset: EvaluationDataset
) -> list[Picture]:
    """Return the worst images of an evaluation of `dataset`, the worst first."""
    pictures = []
    for record in evaluation.worst(_MOST):
        sample = dataset.read(record.pair)
        logits = resize(predictor.logits(sample.image), sample.truth.shape[-2:])  # (1, C, H, W)
        with dataset.pairs.local(dataset.pairs[record.pair].image) as image:
            photo = draw_photo(image, dataset.image_format, _LONGEST)
        labels = predictor.labels
        band = decide(logits, evaluation.threshold, predictor.head)
        predicted = decode(labels, band, sample.truth[0].numpy())
        layers = _draw_layers(sample.mask[0].numpy(), predicted, photo, labels)
        caption = _caption(record, labels)
        uri = to_uri(photo, "JPEG", quality=80)
        pictures.append(Picture(record.name, record.score, caption, uri, *photo.size, layers))
    return pictures


def name_colours(labels: Labels) -> list[tuple[str, Colour]]:
    """Return the names and colours of the classes that pictures show."""
    return [(labels.class_names[k], colour) for k, colour in class_colours(labels).items()]


def legend(labels: Labels) -> list[tuple[str, Colour]]:
    """Return what the colours over the photos mean."""
    entries = name_colours(labels)
    if len(labels.foreground) == 1:
        entries += [("false positive", _FALSE_POSITIVE), ("false negative", _FALSE_NEGATIVE)]
    else:
        entries.append(("wrong class", _FALSE_POSITIVE))
    if labels.ignore is not None or labels.void is not None:
        entries.append(("ignored", _IGNORED))
    return entries


def _caption(record: ImageRecord, labels: Labels) -> str:
    """Return the image's scores; of more than two classes, its three worst."""
    scores = record.scores
    if record.tally is not None:
        return record.tally.caption()
    if labels.is_binary:
        return (
            f"Dice {show(scores.dice)}, IoU {show(scores.iou)}, precision "
            f"{show(scores.precision_per_class[1])}, recall {show(scores.recall_per_class[1])}"
        )
    classes = zip(scores.dice_per_class, labels.class_names, strict=True)
    worst = sorted((dice, name) for dice, name in classes if not math.isnan(dice))[:3]
    names = ", ".join(f"{name} ({dice:.3f})" for dice, name in worst)
    return f"mean Dice {show(scores.dice)}; worst classes: {names}"


def draw_photo(path: Path, wanted: ImageFormat, longest: int) -> Image.Image:
    """Return an image to look at, reduced if its longer side has more than `longest` pixels."""
    image = open_image(Source(path), replace(wanted, ground_resolution=None), scale=1.0)
    return Image.fromarray(to_rgb(image.read_reduced(longest)).permute(1, 2, 0).numpy())


def _draw_layers(
    truth: Mask, predicted: Mask, photo: Image.Image, labels: Labels
) -> dict[str, str]:
    """Return the pictures to lay over a photo, from masks (H, W) at the image's own size."""
    size = photo.height, photo.width
    truth, predicted = resize_nearest(truth, size), resize_nearest(predicted, size)
    wrong = difference(labels.ids_of(truth), labels.ids_of(predicted), 1 + len(labels.foreground))
    colours = class_colours(labels)
    return {
        "truth": draw_layer(labels.layer(truth), colours),
        "prediction": draw_layer(labels.layer(predicted), colours),
        "difference": draw_layer(wrong, {1: _FALSE_POSITIVE, 2: _FALSE_NEGATIVE}),
    }


def difference(truth: Ids, predicted: Ids, num_classes: int) -> Ids:
    """Return 1 for false positives, 2 for false negatives, 0 where the prediction is right.

    With more than two classes 1 for every wrong pixel; IGNORE_ID stays.
    """
    kinds: Ids = (truth != predicted).astype(np.uint8)
    if num_classes == 2:
        kinds[(truth == 1) & (predicted != 1)] = 2
    kinds[truth == IGNORE_ID] = IGNORE_ID
    return kinds


def draw_layer(ids: Ids, colours: dict[int, Colour]) -> str:
    """Return a palette PNG that is transparent but for `colours`, and grey where ignored."""
    palette, opacity = [0] * 768, bytearray(256)
    for k, colour in {**colours, IGNORE_ID: _IGNORED}.items():
        palette[3 * k : 3 * k + 3] = colour
        opacity[k] = 255
    image = Image.fromarray(ids)
    image.putpalette(palette)
    return to_uri(image, "PNG", transparency=bytes(opacity))


def to_uri(image: Image.Image, kind: str, **options: object) -> str:
    """Return an image as a data URI of a file of this `kind`."""
    data = io.BytesIO()
    image.save(data, kind, **options)
    text = base64.b64encode(data.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"
