"""Counts of pixels, against loops over them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import fake_tensor

from tests.operations import Operations
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.metrics import counts as counting
from unet_ddp.metrics.counts import BINS, Counts, confidence, histogram


def random_batch(rng: np.random.Generator, classes: int) -> tuple[Tensor, Tensor]:
    """Logits (2, C, 10, 15) that know something, and masks with ignored pixels."""
    masks = torch.from_numpy(rng.integers(0, classes, (2, 10, 15)).astype(np.uint8))
    logits = torch.from_numpy(rng.normal(0, 2, (2, classes, 10, 15)).astype(np.float32))
    logits.scatter_add_(1, masks.long()[:, None], torch.full((2, 1, 10, 15), 1.5))
    masks[0, :3] = IGNORE_ID
    return logits, masks


@pytest.mark.parametrize("classes", [2, 5])
def test_every_pixel_that_is_not_ignored_is_counted_once(
    rng: np.random.Generator, classes: int
) -> None:
    logits, masks = random_batch(rng, classes)
    table = torch.zeros(classes, classes, dtype=torch.int64)
    bars = torch.zeros(2, BINS, dtype=torch.int64)
    for n, row, column in np.ndindex(*masks.shape):
        truth = int(masks[n, row, column])
        if truth == IGNORE_ID:
            continue
        odds = logits[n, :, row, column].exp()
        probabilities = odds / odds.sum()
        best = int(probabilities.argmax())
        table[truth, best] += 1
        p, is_true = (
            (probabilities[1], truth) if classes == 2 else (probabilities[best], truth == best)
        )
        assert confidence(logits)[n, row, column] == pytest.approx(float(p), abs=1e-6)
        bars[int(is_true), int(confidence(logits)[n, row, column] * BINS)] += 1
    whole = Counts.of(logits, masks)
    assert torch.equal(whole.confusion, table)
    assert torch.equal(whole.histogram, bars)
    parts = Counts.zeros(classes, masks.device)
    for n in (1, 0):
        parts.add(Counts.of(logits[n : n + 1], masks[n : n + 1]))
    assert torch.equal(parts.confusion, table) and torch.equal(parts.histogram, bars)


def test_rows_are_the_truth_and_columns_the_prediction() -> None:
    truth = torch.tensor([[[0, 0, 0, 1, 2, IGNORE_ID]]], dtype=torch.uint8)
    predicted = torch.tensor([[[0, 1, 1, 1, 0, 2]]])
    assert Counts.confuse(predicted, truth, 3).tolist() == [[1, 2, 0], [0, 1, 0], [1, 0, 0]]


def test_class_ids_above_15_do_not_overflow_a_byte() -> None:
    truth, predicted = torch.full((1, 1, 1), 199, dtype=torch.uint8), torch.full((1, 1, 1), 198)
    table = Counts.confuse(predicted, truth, 200)
    assert table[199, 198] == table.sum() == 1


def test_probabilities_fall_into_bins_by_their_lower_edge() -> None:
    p = torch.tensor([[[0.0, 1 / BINS, 0.5, 1.0 - 2**-24, 1.0, math.nan]]])
    ones = torch.ones_like(p, dtype=torch.uint8)
    bars = histogram(p, ones.long(), ones, 2)
    assert bars[1].nonzero().flatten().tolist() == [0, 1, 512, BINS - 1]
    assert bars[1, [0, 1, 512, BINS - 1]].tolist() == [2, 1, 1, 2]
    assert bars[0].sum() == 0


def test_of_more_than_two_classes_the_rows_are_wrong_and_right() -> None:
    truth = torch.tensor([[[0, 1, 2, 2]]], dtype=torch.uint8)
    bars = histogram(torch.full((1, 1, 4), 0.25), torch.tensor([[[0, 1, 1, 2]]]), truth, 3)
    assert bars[:, 256].tolist() == [1, 3]


def test_half_precision_logits_have_float32_probabilities() -> None:
    for classes in (2, 3):
        assert (
            confidence(torch.zeros(1, classes, 2, 2, dtype=torch.bfloat16)).dtype == torch.float32
        )
    large = torch.tensor([60000.0, -60000.0], dtype=torch.float16).view(1, 2, 1, 1)
    assert confidence(large).item() == 0.0  # their difference is none of float16's


def test_logits_that_are_not_finite_are_counted_too() -> None:
    logits = torch.full((1, 2, 4, 4), math.nan)
    assert Counts.of(logits, torch.ones(1, 4, 4, dtype=torch.uint8)).histogram.sum() == 16


def test_ranks_add_up_both_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "sum_over_ranks", lambda tensor: 3 * tensor)
    one = Counts(torch.ones(2, 2, dtype=torch.int64), torch.full((2, BINS), 2))
    total = one.over_ranks()
    assert total.confusion.unique().tolist() == [3] and total.histogram.unique().tolist() == [6]
    assert one.confusion.unique().tolist() == [1]


def test_on_a_gpu_equal_pixels_are_counted_at_many_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Confident pixels are all in two bins: a GPU would add them up one after the other."""
    monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
    with fake_tensor.FakeTensorMode(), Operations() as operations:
        counting.count_cells(
            torch.zeros(9, dtype=torch.int64, device="cuda"),
            torch.zeros(9, dtype=torch.uint8, device="cuda"),
            2 * BINS,
        )
    added = operations.of(torch.ops.aten.scatter_add_.default)
    assert [target.numel() for (target, *_), _ in added] == [127 * 2049]


@pytest.mark.parametrize("copies", [1, 3, 8])
def test_counts_are_the_same_from_any_number_of_copies(
    rng: np.random.Generator, copies: int
) -> None:
    cells = torch.from_numpy(rng.integers(0, 7, 500))
    masks = torch.from_numpy(rng.choice([0, IGNORE_ID], 500)).to(torch.uint8)
    expected = torch.bincount(cells[masks == 0], minlength=7)
    assert torch.equal(counting.count_cells(cells, masks, 7, copies), expected)
