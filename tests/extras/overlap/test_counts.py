"""Counts and scores of overlapping classes, against those of segmentation-models-pytorch."""

from __future__ import annotations

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch

from tests.extras.overlap.test_loss import draw
from tests.ranks import Ranks
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.samplers import ScoringSampler
from unet_ddp.distributed.join import join, leave
from unet_ddp.extras.overlap.bits import join_planes
from unet_ddp.extras.overlap.counts import ClassCounts
from unet_ddp.metrics.counts import BINS
from unet_ddp.metrics.curves import ThresholdCurve
from unet_ddp.metrics.scores import Scores, Validation


@pytest.mark.parametrize("classes", [2, 9])
def test_scores_are_those_of_others(rng: np.random.Generator, classes: int) -> None:
    logits, truth, ids = draw(rng, classes)
    scores = Scores.from_confusion(ClassCounts.of(logits.detach(), ids).confusion)
    tp, fp, fn, tn = (
        each.sum(0, keepdim=True)
        for each in smp.metrics.get_stats(logits.detach() >= 0, truth, mode="multilabel")
    )
    for ours, measure in (
        (scores.dice_per_class, smp.metrics.f1_score),
        (scores.iou_per_class, smp.metrics.iou_score),
        (scores.precision_per_class, smp.metrics.precision),
        (scores.recall_per_class, smp.metrics.recall),
    ):
        theirs = measure(tp, fp, fn, tn, reduction="none")[0]
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert scores.dice == pytest.approx(np.mean(scores.dice_per_class))  # of two classes, too


def test_ignored_pixels_are_not_counted(rng: np.random.Generator) -> None:
    logits, truth, ids = draw(rng, 3, ignored=0.5)
    counts = ClassCounts.of(logits.detach(), ids)
    valid = ids != IGNORE_ID
    assert counts.confusion.sum((1, 2)).tolist() == [int(valid.sum())] * 3
    expected = (truth & valid.unsqueeze(1)).sum((0, 2, 3))
    assert counts.confusion[:, 1].sum(1).tolist() == expected.tolist()
    assert torch.equal(counts.histogram.sum(2), counts.confusion.sum(2))


def test_the_threshold_of_a_class_is_the_best_for_it_alone() -> None:
    truth = np.zeros((2, 10, 10), bool)
    truth[0, :5], truth[1, :, :3] = True, True
    ids = torch.from_numpy(join_planes(truth, 2))[None]
    logits = torch.where(torch.from_numpy(truth), 1.0, -1.0)[None]
    logits[:, 1] += 2  # of the second class, all pixels are above 0.5
    counts = ClassCounts.of(logits, ids)
    low, high = (ThresholdCurve.from_histogram(each).best for each in counts.histogram.numpy())
    assert low == 0.5 and 1 / (1 + np.exp(-1)) < high <= 1 / (1 + np.exp(-3))
    validation = Validation.from_counts(counts)
    assert validation.threshold is None and validation.scores.dice_per_class[0] == 1


def shard(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The counts of so many images, shared out."""
    world = join("cpu", 60)
    counts = ClassCounts.zeros(3, world.device)
    for _, index in ScoringSampler(count, rank=world.rank, size=world.size):
        logits, _, ids = draw(np.random.default_rng(index), 3, ignored=0.2)
        counts.add(ClassCounts.of(logits.detach(), ids))
    total = counts.over_ranks()
    leave(world)
    return total.confusion.numpy(), total.histogram.numpy()


def test_counts_are_identical_on_1_to_3_ranks(ranks: Ranks) -> None:
    alone = ranks.run(1, shard, 5)[0]
    assert alone[1].shape == (3, 2, BINS)
    for size in (2, 3):
        for found in ranks.run(size, shard, 5):
            assert all((a == b).all() for a, b in zip(found, alone, strict=True))
