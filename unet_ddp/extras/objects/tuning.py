"""Choose how objects are separated in a network's predictions: the way that scores best on validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch

from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.labels import Labels
from unet_ddp.distributed.world import World
from unet_ddp.evaluation.dataset import EvaluationDataset, EvaluationSample
from unet_ddp.evaluation.scoring import decide, decode, score_each
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.metrics.counts import Counts
from unet_ddp.metrics.scores import Tally, total
from unet_ddp.prediction.backends import LoadedModel, TorchBackend
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.training.state import TrainState

_PIXELS = 1 << 21  # that all ranks together decode at each best network: some 6 s of one core
_SIDE = 512  # of the middle of an image that is decoded

Watch = Callable[[Iterator[EvaluationSample]], Iterable[EvaluationSample]]


class SeparationTuner:
    """Chooses among the candidates of a data set's labels.

    All ranks decode their share of the validation images: of all, or of some, evenly spaced, and of
    large ones the middle. They are read once, and kept.
    """

    def __init__(self, data: PreparedData, world: World, *, resize_masks: bool) -> None:
        self._labels, self._pairs = data.labels, data.split.validated
        self._world, self._resize_masks = world, resize_masks
        self._samples: list[EvaluationSample] = []

    def tune(self, state: TrainState, counts: Counts, watch: Watch) -> tuple[Labels, float, str]:
        """Return the labels that decode the predictions of the state's network best, and their score.

        The `counts` of pixels say nothing of objects. `watch` passes the samples on, until the run is to
        stop: what is returned does not count then.
        """
        network, device = state.validation_network, self._world.device
        was_training = network.training
        dtype = state.precision.dtype if device.type == "cpu" else torch.float32
        backend = TorchBackend(network, state.preprocess, device, fold=False, dtype=dtype)
        model = LoadedModel(backend, self._labels, state.preprocess, None, [])
        predictor = Predictor([model], device=device)
        chosen, score = choose_separation(predictor, watch(self._read(predictor)), self._world)
        network.train(was_training)
        return chosen, score, "mean AP"

    def _read(self, predictor: Predictor) -> Iterator[EvaluationSample]:
        """Yield this rank's share of the samples."""
        if self._samples:
            yield from self._samples
            return
        resize_masks, world = self._resize_masks, self._world
        dataset = EvaluationDataset(
            self._pairs, predictor, full_size=False, resize_masks=resize_masks
        )
        pixels = _crop(dataset.read(0)).truth.numel()
        count = min(max(1, _PIXELS // pixels), len(dataset))
        spread = np.linspace(0, len(dataset) - 1, count)
        rows = spread.round().astype(int).tolist()
        samples = []
        for row in rows[world.rank :: world.size]:
            samples.append(_crop(dataset.read(row)))
            yield samples[-1]
        self._samples = samples


def _crop(sample: EvaluationSample) -> EvaluationSample:
    """Return the middle of a sample, at most 512 pixels a side."""
    _, height, width = sample.truth.shape
    top = max(0, height - _SIDE) // 2
    left = max(0, width - _SIDE) // 2
    window = slice(None), slice(top, top + _SIDE), slice(left, left + _SIDE)
    *tensors, pair = sample
    return EvaluationSample._make([*(each[window].clone() for each in tensors), pair])


def choose_separation(
    predictor: Predictor, samples: Iterable[EvaluationSample], world: World
) -> tuple[Labels, float]:
    """Return the candidate with the highest score over the samples of all ranks, and that score.

    Of equally good ones it is the first, on every rank; without samples, too. Without a true object there
    is no score: nan.
    """
    labels = predictor.labels
    assert isinstance(labels, ObjectLabels)
    candidates = labels.candidates()

    def count(sample: EvaluationSample) -> list[Tally]:
        band = decide(predictor.logits(sample.image), None, predictor.head)
        truth = sample.truth[0].numpy()
        true_mask = sample.mask[0].numpy()
        masks = (decode(each, band, truth) for each in candidates)
        return [total(labels.score(mask, true_mask)) for mask in masks]

    counted = score_each(count, samples, world)
    tallies = [total(column) for column in zip(*counted, strict=True)]
    if not tallies:
        return candidates[0], math.nan
    scores = [tally.quality for tally in tallies]
    best = int(np.argmax(np.nan_to_num(scores)))
    has_truth = tallies[best].scores["true_objects"] > 0
    return candidates[best], scores[best] if has_truth else math.nan
