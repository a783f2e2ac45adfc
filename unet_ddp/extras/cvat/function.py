"""A network as CVAT's detection function, with which cvat-cli and its agents annotate tasks.

cvat-cli task auto-annotate 7 --function-module unet_ddp.extras.cvat -p model=str:checkpoints/round1
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from cvat_sdk import auto_annotation as cvat
from cvat_sdk.masks import encode_mask
from PIL import Image
from scipy import ndimage

from unet_ddp.checkpoints.weights import find_model
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Flags, Size
from unet_ddp.errors import check_installed
from unet_ddp.extras.outputs.annotations import find_outlines
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.predictor import Predictor


class FoundObject(NamedTuple):
    """Connected pixels of a class, or an object that the network has numbered."""

    class_id: int
    window: tuple[slice, slice]  # rows and columns of the image
    pixels: Flags  # (rows, columns)


def create(model: str, **options: Any) -> Function:
    """Return the function of a checkpoint or a run's folder; the options are `Predictor.from_checkpoint`'s."""
    return Function(Predictor.from_checkpoint(find_model(model), **options))


class Function:
    """A detection function: each object in an image is a mask, or a polygon if CVAT asks for these.

    The labels of the task and the classes of the network are matched by their names.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        names, foreground = predictor.labels.class_names, predictor.labels.foreground
        self.spec = cvat.DetectionFunctionSpec(
            labels=[cvat.label_spec(names[k], k, type="mask") for k in foreground]
        )

    def detect(self, context: cvat.DetectionFunctionContext, image: Image.Image) -> list[Any]:
        """Return the objects in an image; a threshold is the least mean probability of an object."""
        prediction = self.predictor(image)
        found = list(find_objects(prediction))
        if context.conf_threshold:
            pairs = zip(found, measure_confidences(prediction, found), strict=True)
            found = [each for each, share in pairs if share >= context.conf_threshold]
        if context.conv_mask_to_poly:
            check_installed("rasterio", "geo", "polygons for CVAT")
            return [*chain.from_iterable(map(_draw_polygons, found))]
        return [_draw_mask(each, prediction.size) for each in found]


def find_objects(prediction: Prediction) -> Iterator[FoundObject]:
    """Yield the objects of all classes but the background."""
    foreground = prediction.labels.foreground
    for regions in prediction.labels.regions(prediction.mask):
        numbered = [regions.values]
        if not regions.are_numbers:  # pixels that share edges are an object
            areas = [(regions.ids == k) & regions.counted for k in foreground]
            numbered = [ndimage.label(area)[0] for area in areas]
        for numbers in numbered:
            for number, window in enumerate(ndimage.find_objects(numbers), start=1):
                if window is not None:
                    pixels = numbers[window] == number
                    yield FoundObject(int(regions.ids[window][pixels][0]), window, pixels)


def measure_confidences(prediction: Prediction, found: list[FoundObject]) -> list[float]:
    """Return the mean probability of each object's pixels to be of its class, or of an object at all."""
    extent = prediction.extent
    if extent is not None:
        return [float(extent[each.window][each.pixels].mean()) / 255 for each in found]
    probabilities = prediction.probabilities
    means = [probabilities[each.class_id][each.window][each.pixels].mean() for each in found]
    return [float(mean) for mean in means]


def _draw_mask(found: FoundObject, size: Size) -> Any:
    rows, columns = found.window
    pixels = np.zeros(size, bool)
    pixels[found.window] = found.pixels
    box = [columns.start, rows.start, columns.stop, rows.stop]
    return cvat.mask(found.class_id, encode_mask(pixels, box))


def _draw_polygons(found: FoundObject) -> Iterator[Any]:
    for _, ring, _ in find_outlines(found.pixels.view(np.uint8), Labels((0, 1))):
        rows, columns = found.window
        points = np.add(ring, (columns.start, rows.start)).ravel().tolist()
        yield cvat.polygon(found.class_id, points)
