"""Images and classes that are drawn by class."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests.checks.test_rules import scanned
from unet_ddp.checks import table as module
from unet_ddp.checks.table import Table
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pairs
from unet_ddp.errors import UserError
from unet_ddp.extras.sampling.balance import ClassDraw, find_classes


@pytest.mark.parametrize("block", [8, 24, 100])
def test_the_classes_of_each_pair(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Any pairs, in any order; the ignored value is no class, nor are pairs asked for."""
    monkeypatch.setattr(module, "BLOCK", block)
    labels = Labels((0, 255, 7, 9), ignore=3)
    pairs = []
    for k in range(50):
        values = sorted(rng.choice([0, 3, 7, 255], rng.integers(0, 5), replace=False).tolist())
        pairs.append(scanned(f"n{k:02}", values=tuple(values), counts=(1,) * len(values)))
    table = Table.from_scan(pairs)
    chosen = rng.permutation(50)[:37].tolist()
    bits = find_classes(table, labels, Pairs(pairs[k].pair for k in chosen))
    assert bits.shape == (4, 5) and bits.dtype == np.uint8
    found = np.unpackbits(bits, axis=1)
    assert found[:, 37:].sum() == 0 == found[3].sum()
    for place, k in enumerate(chosen):
        expected = [value in pairs[k].mask.values for value in labels.values]
        assert found[:, place].tolist() == expected


def make_draw(has: np.ndarray, share: float = 1.0, seed: int = 0) -> ClassDraw:
    """The draw of images (classes, images) that have each class or not."""
    return ClassDraw(np.packbits(has, axis=1), share=share, seed=seed)


def test_each_class_that_occurs_is_drawn_as_often_as_any_other() -> None:
    """In all of 3000 images, in 40 of them or in one; a fourth in none. Each of the 40 as often."""
    has = np.zeros((4, 3000), bool)
    few = np.random.default_rng(1).choice(3000, 40, replace=False)
    has[0], has[1, few], has[3, 2999] = True, True, True
    draw = make_draw(has, share=0.6)
    found = [draw(2, index) for index in range(3000)]
    drawn = [(image, class_id) for image, class_id in found if class_id is not None]
    assert abs(len(drawn) - 1800) < 4 * 27  # deviations of a binomial
    assert all(has[class_id, image] for image, class_id in drawn)
    assert all(image == k for k, (image, class_id) in enumerate(found) if class_id is None)
    counts = np.bincount([class_id for _, class_id in drawn], minlength=4)
    assert counts[2] == 0 and np.abs(counts[[0, 1, 3]] - 600).max() < 4 * 20
    images = np.bincount([image for image, class_id in drawn if class_id == 1], minlength=3000)
    assert images.sum() == images[few].sum() and images[few].min() >= 3 and images[few].max() <= 35
    assert len({image for image, class_id in drawn if class_id == 0}) > 500  # of 600 draws


def test_a_draw_is_a_function_of_seed_epoch_and_index(rng: np.random.Generator) -> None:
    has = rng.random((3, 700)) < 0.3
    keys = [(epoch, index) for epoch in (0, 1, 5) for index in range(200)]
    draw = make_draw(has, share=0.5, seed=7)
    expected = {key: draw(*key) for key in keys}
    other = pickle.loads(pickle.dumps(draw))
    assert {key: other(*key) for key in reversed(keys)} == expected
    for changed in (make_draw(has, share=0.5, seed=8), lambda epoch, index: draw(epoch + 1, index)):
        same = [changed(*key) == expected[key] for key in keys]
        assert sum(same) < 0.4 * len(same)  # both are the index's own image


def test_every_image_of_a_class_can_be_drawn(rng: np.random.Generator) -> None:
    """Also at the ends of the parts that are counted together."""
    has = np.zeros((1, 1600), bool)
    ends = [0, 7, 8, 511, 512, 1023, 1024, 1535, 1536, 1599]
    has[0, ends] = True
    draw = make_draw(has)
    assert {draw(0, index)[0] for index in range(200)} == set(ends)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (1.0, 100)])
def test_none_or_all_by_class(share: float, count: int) -> None:
    draw = make_draw(np.ones((2, 100), bool), share)
    assert sum(draw(0, index)[1] is not None for index in range(100)) == count


def test_no_class_in_any_image_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^--balance 50: the training masks have no pixel of any"):
        make_draw(np.zeros((3, 9), bool), 0.5)
    assert make_draw(np.eye(2, 9, dtype=bool), 0.5).describe() == (
        "balance: 50% of the samples drawn by class, 25.0% for each"
    )
