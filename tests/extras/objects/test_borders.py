"""Borders between objects, worked out by hand and against a search of each pixel's window."""

from __future__ import annotations

import numpy as np

from unet_ddp.extras.objects.borders import BACKGROUND, BODY, BORDER, mark_borders, number_densely


def test_two_that_touch_have_a_border_in_both_and_one_alone_has_none() -> None:
    numbers = np.zeros((5, 9), np.uint8)
    numbers[1:4, 1:4], numbers[1:4, 4:7] = 9, 200
    ids = mark_borders(numbers)
    expected = (numbers > 0).astype(np.uint8)
    expected[0:5, 3:5] = BORDER  # and the background above and below, near both
    assert np.array_equal(ids, expected)
    assert set(np.unique(mark_borders(np.where(numbers == 9, 9, 0)))) == {BACKGROUND, BODY}


def test_a_gap_of_a_pixel_is_border_and_a_wide_one_is_background() -> None:
    row = np.array([[5, 5, 5, 0, 7, 7, 0, 0, 3, 3]])
    assert mark_borders(row).tolist() == [[1, 1, 1, 2, 1, 1, 0, 0, 1, 1]]


def by_search(numbers: np.ndarray, radii: dict[int, int]) -> np.ndarray:
    """The rule of `mark_borders`, one pixel at a time."""
    ids = (numbers > 0).astype(np.uint8)
    for y, x in np.ndindex(numbers.shape):
        radius = radii[int(numbers[y, x])]
        window = numbers[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1]
        if len(set(window.ravel().tolist()) - {0}) > 1:
            ids[y, x] = BORDER
    return ids


def test_a_border_is_as_wide_as_its_objects_are_large() -> None:
    """40x40 pixels: 2.5, rounded to even, into the object; 70x70: 4; a small one: 1."""
    numbers = np.zeros((90, 140), np.int32)
    numbers[5:45, 5:45], numbers[5:75, 45:115], numbers[46:52, 38:44] = 40_000, 3, 2**24 - 1
    ids = mark_borders(numbers)
    assert np.array_equal(ids, by_search(numbers, {0: 4, 40_000: 2, 3: 4, 2**24 - 1: 1}))
    assert ids[20, 42:50].tolist() == [1, 2, 2, 2, 2, 2, 2, 1]


def test_a_border_reaches_8_pixels_into_an_object_at_most() -> None:
    ids = mark_borders(np.ones((200, 400), np.uint8).cumsum(1) // 201 + 1)
    assert np.flatnonzero(ids[100] == BORDER).tolist() == [*range(192, 208)]


def test_gaps_and_the_order_of_numbers_change_nothing(rng: np.random.Generator) -> None:
    numbers = np.kron(rng.integers(0, 6, (8, 9)), np.ones((4, 5), int)).astype(np.int32)
    others = np.array([0, 16_000_000, 7, 65_535, 65_536, 300], np.int32)[numbers]
    assert np.array_equal(mark_borders(others), mark_borders(numbers))
    dense = number_densely(others)
    assert dense.max() < 6 and np.array_equal(dense > 0, numbers > 0)
    no_background = number_densely(np.array([[2**20, 2**21]], np.int32))
    assert no_background.min() > 0


def test_an_empty_mask_is_background() -> None:
    assert not mark_borders(np.zeros((3, 4), np.int32)).any()


def test_values_with_classes_have_the_borders_of_their_objects(rng: np.random.Generator) -> None:
    numbers = np.kron(rng.integers(0, 6, (8, 9)), np.ones((4, 5), int)).astype(np.int32)
    values = np.array([0, 1_000_001, 2_000_001, 2_000_000, 90_000_003, 1_000_900])[numbers]
    assert np.array_equal(mark_borders(values.astype(np.int32)), mark_borders(numbers))
