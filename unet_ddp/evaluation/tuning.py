"""Choose how labels decode a network's predictions: the way that scores best on validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pair
from unet_ddp.distributed.world import World
from unet_ddp.evaluation.dataset import EvaluationDataset, EvaluationSample
from unet_ddp.evaluation.scoring import Decided, decide, score_each
from unet_ddp.metrics.scores import Tally, total
from unet_ddp.prediction.backends import LoadedModel, TorchBackend
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.training.state import TrainState

_PIXELS = 1 << 22  # tried at each best network: on one core some 20 s, which ranks share
_FEWEST = 4  # images, however large

Watch = Callable[[Iterator[EvaluationSample]], Iterable[EvaluationSample]]


def tune_labels(
    state: TrainState,
    labels: Labels,
    pairs: Sequence[Pair],
    world: World,
    *,
    resize_masks: bool,
    watch: Watch,
) -> Labels:
    """Return the one of `labels.candidates` that decodes the network's predictions best.

    All ranks score their share of the validation `pairs`, or of some, evenly spaced. `watch` passes samples on until the run is
    to stop: what is returned does not count then.
    """
    network = state.validation_network
    was_training = network.training
    half = state.precision.dtype if world.device.type == "cpu" else torch.float32
    backend = TorchBackend(network, state.preprocess, world.device, fold=False, dtype=half)
    predictor = Predictor(
        [LoadedModel(backend, labels, state.preprocess, None, [])], device=world.device
    )
    dataset = EvaluationDataset(pairs, predictor, full_size=False, resize_masks=resize_masks)
    chosen, _ = choose_labels(predictor, watch(_read_spread(dataset, world)), world)
    network.train(was_training)
    return chosen


def _read_spread(dataset: EvaluationDataset, world: World) -> Iterator[EvaluationSample]:
    """Yield this rank's share of samples that stand for all, as many as their sizes allow."""
    most = max(_FEWEST, _PIXELS // dataset.read(0).truth.numel())
    rows = np.linspace(0, len(dataset) - 1, min(most, len(dataset))).round().astype(int).tolist()
    yield from map(dataset.read, rows[world.rank :: world.size])


def choose_labels(
    predictor: Predictor, samples: Iterable[EvaluationSample], world: World
) -> tuple[Labels, float]:
    """Return the candidate with the highest score over the samples of all ranks, and that score.

    Of equally good ones it is the first, on every rank.
    """
    candidates = predictor.labels.candidates()

    def count(sample: EvaluationSample) -> list[Tally]:
        logits, truth = predictor.logits(sample.image), sample.truth[0].numpy()
        decided = Decided(decide(logits, None)[0].cpu().numpy().astype(np.uint8), logits)
        masks = (decided.decode(each, truth) for each in candidates)
        true = sample.mask[0].numpy()
        return [total(predictor.labels.score(mask, true)) for mask in masks]

    counted = score_each(count, samples, world)
    scores = [total(column).quality for column in zip(*counted, strict=True)]
    best = int(np.argmax(np.nan_to_num(scores))) if scores else 0
    return candidates[best], scores[best] if scores else 0.0
