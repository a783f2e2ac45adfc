"""The images of each training."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import make_set
from tests.tiny import make_data, make_pairs
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.matching import find_pairs, read_list
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError
from unet_ddp.extras.learning_curve.subsets import (
    Groups,
    choose_sizes,
    draw_groups,
    group_training,
    write_list,
)


def data_of(training: str, validation: str, groups: str) -> PreparedData:
    names = training + validation
    return make_data(training, validation, groups=dict(zip(names, groups, strict=True)))


def names_of(groups: Groups) -> list[str]:
    return ["".join(pair.name for pair in group) for group in groups]


def make_groups(*sizes: int) -> Groups:
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    return [list(make_pairs("".join(next(letters) for _ in range(size)))) for size in sizes]


def test_groups_stay_whole_unless_the_split_divides_them() -> None:
    assert names_of(group_training(data_of("abcd", "xy", "112233"))) == ["ab", "cd"]
    assert names_of(group_training(data_of("abcd", "xy", "112223"))) == [*"abcd"]
    folder = make_data("abcd", "xy", groups=dict(zip("abcd", "1122", strict=True)))
    assert names_of(group_training(folder)) == ["ab", "cd"]  # validation has its own folder


def test_smaller_sizes_are_within_larger_ones() -> None:
    """And they are whole groups; another seed has others."""
    groups = make_groups(*[2] * 9)
    drawn = {}
    for seed in range(5):
        sets = [{pair.name for pair in draw_groups(groups, size, seed)} for size in (1, 2, 4, 9)]
        assert [len(each) for each in sets] == [2, 4, 8, 18]
        assert all(small < large for small, large in pairwise(sets))
        for each in sets:
            assert all(len(each.intersection(name)) in (0, 2) for name in names_of(groups))
        drawn[seed] = frozenset(sets[1])
        again = draw_groups(groups, 2, seed)
        assert {pair.name for pair in again} == sets[1]
    assert len(set(drawn.values())) > 2


@pytest.mark.parametrize(
    ("groups", "given", "sizes"),
    [
        (make_groups(*[1] * 8), (), [1, 2, 4, 8]),
        (make_groups(*[2] * 13), (), [2, 3, 6, 13]),
        (make_groups(4, 4, 4, 4, 4), (5, 1, 2, 2), [1, 2, 5]),
    ],
)
def test_sizes(groups: Groups, given: tuple[int, ...], sizes: list[int]) -> None:
    assert choose_sizes(groups, given) == sizes


@pytest.mark.parametrize(
    ("groups", "given", "said"),
    [
        (make_groups(4, 4, 4, 4, 4), (),
         "5 groups of 20 images to train on: use 3 or more numbers up to 5, as --sizes 1 2 3 5"),
        (make_groups(*[1] * 7), (), "^7 images to train on: use .* up to 7, as --sizes 1 2 4 7"),
        (make_groups(1, 1, 1), (), "as --sizes 1 2 3"),
        (make_groups(9, 9), (1, 2), "2 groups of 18 images to train on: a curve takes at least 3; label more, or count"),
        (make_groups(*[2] * 9), (1, 2), "9 groups of 18 .* use 3 or more numbers up to 9, as --sizes 1 2 5 9"),
        (make_groups(*[2] * 9), (1, 2, 10), "up to 9, as --sizes 1 2 5 9"),
    ],
)  # fmt: skip
def test_too_few_groups_are_said_with_what_to_type(
    groups: Groups, given: tuple[int, ...], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        choose_sizes(groups, given)


def test_a_list_trains_on_what_was_chosen_and_knows_the_rest(tmp_path: Path) -> None:
    folder = make_set(tmp_path, 4)
    pairs = find_pairs(folder / "imgs", folder / "masks")
    pairs = Pairs([replace(pairs[0], source="night"), *pairs[1:]])
    split = Split(pairs[:3], pairs[3:], "")
    write_list(tmp_path / "list.csv", make_data(split=split), [pairs[1]])
    sides = [(Path(pair.name).name, pair.side) for pair in read_list(tmp_path / "list.csv")]
    left = "left out"
    assert [pair.source for pair in read_list(tmp_path / "list.csv")] == ["night", None, None, None]
    assert sides == [("ax", left), ("bx", "training"), ("cx", left), ("dx", left)]
