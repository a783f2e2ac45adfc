"""The worst images as small pictures, with truth, prediction and their difference to lay over."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unet_ddp.data.drawing import TINT, to_rgb
from unet_ddp.data.formats.read import read_header, read_image
from unet_ddp.data.labels import IGNORE_ID, Colour, Labels
from unet_ddp.evaluation.dataset import EvaluationDataset
from unet_ddp.evaluation.results import Evaluation
from unet_ddp.evaluation.scoring import decide
from unet_ddp.evaluation.trained import Trained, resize
from unet_ddp.metrics.scores import Scores

MOST = 24  # pictures in a report
LONGEST = 640  # pixels of a picture's longer side
FALSE_ALARM, MISSED, IGNORED = (213, 94, 0), (0, 114, 178), (128, 128, 128)
"""Okabe and Ito's vermilion and blue, told apart by colour-blind eyes too."""

Ids = NDArray[np.uint8]


@dataclass(frozen=True)
class Picture:
    """One image of the gallery; pictures are data URIs."""

    name: str
    scores: Scores
    photo: str
    width: int
    height: int
    truth: str
    """Transparent but for the classes; as large as the photograph."""
    prediction: str
    difference: str
    """Transparent where the prediction is right."""


def make_gallery(
    evaluation: Evaluation, trained: Trained, dataset: EvaluationDataset, *, most: int = MOST
) -> list[Picture]:
    """The `most` worst images of an evaluation of `dataset`, the worst first.

    Raises:
        UserError: an image can't be read any more.
    """
    pictures = []
    for record in evaluation.worst(most):
        sample = dataset.read(record.number)
        logits = resize(trained(sample.image), sample.truth.shape[-2:])
        predicted = decide(logits, evaluation.threshold)[0].cpu().numpy().astype(np.uint8)
        photo, truth = _photo(dataset, record.number), sample.truth[0].numpy()
        pictures.append(
            _picture(record.name, record.scores, photo, truth, predicted, trained.labels)
        )
    return pictures


def _photo(dataset: EvaluationDataset, number: int) -> Image.Image:
    """The photograph at its own size, or reduced to LONGEST."""
    path = dataset.pairs[number].image
    header = read_header(path)
    scale = min(1.0, LONGEST / max(header.width, header.height))
    pixels = read_image(path, dataset.format, scale=scale)
    return Image.fromarray(to_rgb(pixels).permute(1, 2, 0).numpy())


def _picture(
    name: str, scores: Scores, photo: Image.Image, truth: Ids, predicted: Ids, labels: Labels
) -> Picture:
    size = (photo.height, photo.width)
    truth, predicted = _reduce(truth, size), _reduce(predicted, size)
    predicted = np.where(truth == IGNORE_ID, np.uint8(IGNORE_ID), predicted)
    colours = class_colours(labels)
    return Picture(
        name,
        scores,
        _uri(photo, "JPEG", quality=80),
        photo.width,
        photo.height,
        _layer(truth, colours),
        _layer(predicted, colours),
        _layer(
            difference(truth, predicted, labels.num_classes),
            difference_colours(labels),
            alpha=180,
        ),
    )


def class_colours(labels: Labels) -> dict[int, Colour]:
    """The colours that classes are laid over photographs in; a background of two classes has none."""
    if labels.num_classes == 2:
        return {1: TINT}
    return dict(enumerate(labels.colours))


def difference(truth: Ids, predicted: Ids, num_classes: int) -> Ids:
    """0 where the prediction is right, 1 for false alarms, 2 for what was missed; of more than two
    classes 1 for every pixel of a wrong class. IGNORE_ID stays."""
    wrong = truth != predicted
    kind = np.where(truth == 1, 2, 1) if num_classes == 2 else 1
    return np.where(truth == IGNORE_ID, IGNORE_ID, wrong * kind).astype(np.uint8)


def difference_colours(labels: Labels) -> dict[int, Colour]:
    """The colours of what `difference` gives."""
    return {1: FALSE_ALARM, 2: MISSED} if labels.num_classes == 2 else {1: FALSE_ALARM}


def _reduce(ids: Ids, size: tuple[int, int]) -> Ids:
    """The class at the centre of each new pixel."""
    image = Image.fromarray(ids).resize((size[1], size[0]), Image.Resampling.NEAREST)
    return np.asarray(image)


def _layer(ids: Ids, colours: dict[int, Colour], alpha: int = 130) -> str:
    """A palette PNG that is transparent but for `colours`, and grey where pixels are ignored."""
    palette, opacity = [0] * 768, bytearray(256)
    for k, colour in {**colours, IGNORE_ID: IGNORED}.items():
        palette[3 * k : 3 * k + 3] = colour
        opacity[k] = alpha
    image = Image.fromarray(ids)
    image.putpalette(palette)
    return _uri(image, "PNG", transparency=bytes(opacity))


def _uri(image: Image.Image, kind: str, **how: object) -> str:
    data = io.BytesIO()
    image.save(data, kind, **how)
    text = base64.b64encode(data.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"
