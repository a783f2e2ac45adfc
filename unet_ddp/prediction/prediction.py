"""From scores at the network's size to classes and probabilities at the image's, band by band."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from unet_ddp.data.labels import Labels

Scores = NDArray[np.float32]
"""(C, rows, width) logits up to a constant per pixel; of two classes (1, rows, width), their difference."""
Band = tuple[int, Scores]
"""The rows of an image from one on."""

Kind = TypeVar("Kind", bound=np.generic)

_SMALL = 1 << 22  # pixels of an image up to which its scores are drawn out at once
_AT_ONCE = 1 << 18  # of a band of a larger one, as many as a core keeps at hand
_IN_MEMORY = 1 << 30  # bytes; larger arrays lie in a temporary file


class Prediction:
    """What the network sees in one image; nothing is computed before it is asked for.

    Args:
        scores: at the network's size, top to bottom without a gap; taken again for each use.
        small: (height, width) of the scores.
        size: (height, width) of the image.
        threshold: of two classes, the second is seen where its probability is at least this; None
            for the class with the highest probability.
    """

    def __init__(
        self,
        scores: Iterable[Band],
        labels: Labels,
        *,
        small: tuple[int, int],
        size: tuple[int, int],
        threshold: float | None = None,
    ) -> None:
        self.scores = scores
        self.labels = labels
        self.small = small
        self.size = size
        self.threshold = threshold

    @classmethod
    def of_ids(cls, ids: NDArray[np.uint8], labels: Labels) -> Prediction:
        """One of which no more is known than the class ids (H, W)."""
        size = (ids.shape[0], ids.shape[1])
        prediction = cls([], labels, small=size, size=size)
        prediction.__dict__["ids"] = ids  # where cached_property looks
        return prediction

    @cached_property
    def ids(self) -> NDArray[np.uint8]:
        """Class ids (H, W), at the image's own size."""
        ids = allocate(self.size, np.uint8)
        for top, scores in self._bands():
            ids[top : top + scores.shape[1]] = decide(scores, self.threshold)
        return ids

    @property
    def probabilities(self) -> Scores:
        """Of each class (C, H, W), at the image's own size; they add up to 1."""
        found = allocate((self.labels.num_classes, *self.size), np.float32)
        for top, band in self.probability_bands():
            found[:, top : top + band.shape[1]] = band
        return found

    def probability_bands(self) -> Iterator[Band]:
        """The same from top to bottom, (C, rows, W) at a time."""
        for top, scores in self._bands():
            yield top, to_probabilities(scores)

    def _bands(self) -> Iterator[Band]:
        return enlarge(self.scores, self.small, self.size)

    @cached_property
    def shares(self) -> list[float]:
        """The share of the pixels that each class has; they add up to 1."""
        if self.labels.num_classes == 2:
            seen = int(np.count_nonzero(self.ids))
            counts = [self.ids.size - seen, seen]
        else:
            classes = range(self.labels.num_classes)
            counts = [int(np.count_nonzero(self.ids == k)) for k in classes]
        return [count / self.ids.size for count in counts]

    def to_image(self) -> Image.Image:
        """The mask in the training masks' own values."""
        return self.labels.to_image(self.ids)


def reduce_logits(logits: Tensor) -> Tensor:
    """(N, C, h, w) to all that softmax depends on: of two classes their difference (N, 1, h, w)."""
    return logits[:, 1:] - logits[:, :1] if logits.shape[1] == 2 else logits


def decide(scores: Scores, threshold: float | None) -> NDArray[np.uint8]:
    """Class ids (rows, width) of scores."""
    if len(scores) > 1:
        ids: NDArray[np.uint8] = torch.from_numpy(scores).argmax(0).to(torch.uint8).numpy()
        return ids
    if threshold is None:
        seen = scores[0] > 0
    else:
        seen = scores[0] >= math.log(threshold / (1 - threshold))  # where the sigmoid is threshold
    return cast(NDArray[np.uint8], seen.view(np.uint8))


def to_probabilities(scores: Scores) -> Scores:
    """Softmax over the classes, (C, rows, width)."""
    if len(scores) > 1:
        return torch.from_numpy(scores).softmax(0).numpy()
    second = torch.from_numpy(scores[0]).sigmoid()
    return torch.stack([1 - second, second]).numpy()


def enlarge(bands: Iterable[Band], small: tuple[int, int], size: tuple[int, int]) -> Iterator[Band]:
    """Scores of `small` (height, width) drawn out to `size`, bilinearly with pixels as areas.

    As torch's interpolate with align_corners=False; a band at a time, for an image's rows need no
    more than the two rows of scores about them.
    """
    if small == size:
        yield from bands
        return
    if isinstance(bands, Sequence) and len(bands) == 1 and size[0] * size[1] <= _SMALL:
        ((_, scores),) = bands  # all there, and little: half the time of what follows
        yield 0, _upsample(scores, size)
        return
    at = (np.arange(size[0]) + 0.5) * small[0] / size[0] - 0.5
    above = np.floor(at).clip(0, small[0] - 1).astype(np.intp)
    below = (above + 1).clip(max=small[0] - 1)
    share = (at - above).clip(0, 1).astype(np.float32)
    done, held_top, held = 0, 0, np.zeros((0, 0, 0), np.float32)
    for top, scores in bands:
        held = scores if held.size == 0 else np.concatenate([held, scores], axis=1)
        ready = int(np.searchsorted(below, top + scores.shape[1]))  # rows that need none further
        while done < ready:
            rows = slice(done, min(ready, done + max(1, _AT_ONCE // size[1])))
            upper, lower = held[:, above[rows] - held_top], held[:, below[rows] - held_top]
            blended = upper + (lower - upper) * share[rows, None]
            yield done, _upsample(blended, (blended.shape[1], size[1]))
            done = rows.stop
        if done < size[0]:
            held, held_top = held[:, above[done] - held_top :], int(above[done])


def _upsample(scores: Scores, size: tuple[int, int]) -> Scores:
    """Scores (C, rows, width) at another size."""
    import cv2

    large = np.empty((len(scores), *size), np.float32)
    for plane, target in zip(scores, large, strict=True):
        cv2.resize(plane, size[::-1], dst=target, interpolation=cv2.INTER_LINEAR)
    return large


def allocate(shape: tuple[int, ...], dtype: type[Kind]) -> NDArray[Kind]:
    """An array to fill; a large one lies in a temporary file that ends with it."""
    if math.prod(shape) * np.dtype(dtype).itemsize <= _IN_MEMORY:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, mode="w+", shape=shape)
