"""Rims of objects, worked out by hand and against a search of each pixel."""

from __future__ import annotations

import numpy as np

from unet_ddp.extras.objects.borders import BODY, BORDER, mark_borders, number_densely


def test_touching_objects_have_a_rim_all_around_and_bodies_that_are_apart() -> None:
    numbers = np.zeros((11, 20), np.uint8)
    numbers[1:10, 1:10], numbers[1:10, 10:19] = 9, 200
    ids = mark_borders(numbers)
    expected = (numbers > 0).astype(np.uint8) * BORDER
    expected[2:9, 2:9] = expected[2:9, 11:18] = (
        BODY  # the innermost pixel is 5 deep: 1 is below 40 %
    )
    assert np.array_equal(ids, expected)


def test_small_objects_are_bodies_but_where_they_touch() -> None:
    row = np.array([[5, 0, 7, 7, 3, 3, 3]])
    assert mark_borders(row).tolist() == [[1, 0, 1, 2, 2, 1, 1]]


def by_search(numbers: np.ndarray) -> np.ndarray:
    """The rule of `mark_borders`, one pixel at a time; distances by all pixels of an object's edge."""
    ids = (numbers > 0).astype(np.uint8)
    padded = np.pad(numbers, 1, mode="edge")  # beyond the image all goes on
    for number in np.unique(numbers[numbers > 0]):
        is_edge, touches = np.zeros(numbers.shape, bool), np.zeros(numbers.shape, bool)
        for y, x in zip(*np.nonzero(numbers == number), strict=True):
            beside = [
                padded[y, x + 1],
                padded[y + 2, x + 1],
                padded[y + 1, x],
                padded[y + 1, x + 2],
            ]
            others = {int(value) for value in beside} - {int(number)}
            is_edge[y, x], touches[y, x] = bool(others), bool(others - {0})
        edges, places = np.argwhere(is_edge), np.argwhere(numbers == number)
        if not len(edges):
            continue  # the whole image
        apart = places[:, None] - edges[None]
        depths = 1 + np.sqrt((apart**2).sum(-1).min(1)).astype(np.float32)
        rim = np.minimum(np.float32(0.4) * depths.max(), 8)
        is_border = (depths < rim) | touches[tuple(places.T)]
        ids[tuple(places[is_border].T)] = BORDER
    return ids


def test_rims_are_those_of_a_search(rng: np.random.Generator) -> None:
    numbers = np.zeros((90, 140), np.int32)
    numbers[5:45, 5:45], numbers[5:75, 45:115], numbers[46:52, 38:44] = 40_000, 3, 2**24 - 1
    y, x = np.mgrid[:90, :140]
    numbers[(y - 80) ** 2 + (x - 30) ** 2 < 300] = 8  # cut by the image's edge
    assert np.array_equal(mark_borders(numbers), by_search(numbers))
    blocks = np.kron(rng.integers(0, 4, (6, 7)), np.ones((5, 6), int)).astype(np.int32)
    assert np.array_equal(mark_borders(blocks), by_search(blocks))


def test_a_rim_is_7_pixels_wide_at_most_and_ends_at_the_image() -> None:
    ids = mark_borders(np.ones((200, 400), np.uint8).cumsum(1) // 201 + 1)
    assert np.flatnonzero(ids[100] == BORDER).tolist() == [*range(193, 207)]
    assert np.array_equal(ids[0], ids[100])
    assert set(np.unique(mark_borders(np.ones((9, 9), np.uint8)))) == {BODY}


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
