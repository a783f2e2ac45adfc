"""The pairs that are kept for validation."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pytest

from unet_ddp.data.groups import group_names
from unet_ddp.data.matching import find_pairs, read_list
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.splits import (
    Split,
    move_groups,
    split_by_folders,
    split_pairs,
    spread_classes,
    write_split,
)
from unet_ddp.errors import UserError


def fake_pairs(*names: str) -> Pairs:
    return Pairs(Pair(name, Path(name), Path(name)) for name in names)


def names(pairs: Pairs) -> list[str]:
    return list(pairs.names())


def shuffled_by_hash(items: list[str], seed: int) -> list[str]:
    return sorted(items, key=lambda item: hashlib.sha256(f"{seed}:{item}".encode()).hexdigest())


CARS = [f"car{c}x_{view:02d}" for c in "abcdef" for view in range(16)]


@pytest.mark.parametrize(
    ("items", "groups"),
    [
        (CARS, 6),
        ([f"img_{n:03d}" for n in range(40)], 0),  # a prefix common to all is none
        ([f"a_{n}" for n in range(8)] + ["b_1", "b_2"], 0),  # fewer than three
        ([f"{g}_{n}" for g in "abc" for n in range(6)], 3),
        ([f"a_{n}" for n in range(9)] + ["b_1", "b_2", "c_1", "c_2"], 3),  # the small ones will do
        ([f"a_{n}" for n in range(98)] + ["b_1", "c_1"], 0),  # they are far too few
        ([f"s{s}/slice{n}" for s in range(5) for n in range(4)], 5),
        ([f"s{s}/slice_{n}" for s in range(5) for n in range(4)], 5),
        ([f"scene{s}/{n:04d}" for s in range(5) for n in range(4)], 5),
        ([f"imgs/scene{n}" for n in range(20)], 0),  # one folder
        ([f"P{s}-img{n}" for s in range(5) for n in range(4)], 5),
        ([f"patient{s}_slice{n:02d}" for s in range(5) for n in range(4)], 5),
        ([f"v{s}x{n}" for s in range(5) for n in range(4)], 0),  # nothing between
        ([f"drive{d}_f{n:05d}" for d in range(4) for n in range(5)], 4),
        ([f"P{s}_slice{n}_0000" for s in range(5) for n in range(4)], 5),  # nnU-Net's channel
        ([f"case{s}_0000" for s in range(9)], 0),
        ([f"film{s}_{n:04d}" for s in range(5) for n in range(4)], 5),  # it is a frame
    ],
)
def test_groups_are_detected_with_care(items: list[str], groups: int) -> None:
    how = split_pairs(fake_pairs(*items), validation=20, seed=0).how
    assert how.startswith(f"{groups} groups by name" if groups else "image by image")


def test_versions_of_an_image_stay_together() -> None:
    """Roboflow names them x_jpg.rf.HASH; numbers in x are no groups."""
    items = [f"IMG_{n:04d}_jpg.rf.{n * 97 + k:032x}" for n in range(2, 14) for k in range(3)]
    split = split_pairs(fake_pairs(*items), validation=20, seed=0)
    assert split.how == "12 groups by Roboflow's names"
    sources = [
        {name.partition(".rf.")[0] for name in side.names()}
        for side in (split.training, split.validation)
    ]
    assert not sources[0] & sources[1] and min(map(len, sources)) > 0


def test_the_rule_names_the_largest_group() -> None:
    items = [*CARS, "carbx_99"]
    assert split_pairs(fake_pairs(*items), validation=20, seed=0).how == (
        "6 groups by name, e.g. carbx (17 images)"
    )
    items = [f"a_{n}" for n in range(98)] + ["b_1", "c_1"]
    how = split_pairs(fake_pairs(*items), validation=20, seed=0).how
    assert "3 groups, 98 of 100 images in a: if they belong together, use --group-pattern" in how


def test_two_groups_are_named_though_they_are_not_kept_together() -> None:
    items = [f"a_{n:04d}" for n in range(8)] + ["b_0000", "b_0001"]
    assert split_pairs(fake_pairs(*items), validation=20, seed=0).how == (
        "image by image; the names look like 2 groups, 8 of 10 images in a: if they belong together, "
        "use --group-pattern"
    )
    assert split_pairs(fake_pairs("a_1", "b_1"), validation=50, seed=0).how == "image by image"
    items = [item.replace("a", "a{0}") for item in items]
    assert "images in a{0}: if" in split_pairs(fake_pairs(*items), validation=20, seed=0).how


def test_folds_of_too_few_groups_say_what_a_group_is() -> None:
    items = [f"{group}_{n}" for group in "abc" for n in range(6)]
    with pytest.raises(UserError) as caught:
        split_pairs(fake_pairs(*items), validation=0, seed=0, fold=(1, 5))
    assert str(caught.value) == (
        "--fold 1/5: there are 3 groups by name, e.g. a (6 images); use fewer folds, or --group-pattern "
        "'(.+)' if their images do not belong together"
    )
    split_pairs(fake_pairs(*items), validation=0, seed=0, pattern="(.+)", fold=(1, 5))


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize(
    ("percent", "count"), [(0, 0), (1, 1), (10, 2), (12.4, 2), (12.6, 3), (50, 10), (90, 18)]
)
def test_images_are_chosen_by_the_hash_of_seed_and_name(
    percent: float, count: int, seed: int
) -> None:
    """Bit by bit, for a split must be the same in every version: at least one, or none for 0 %."""
    items = [f"n{number}q" for number in range(20)]
    split = split_pairs(fake_pairs(*items), validation=percent, seed=seed)
    assert split.how == "image by image"
    expected = shuffled_by_hash(items, seed)[:count]
    assert names(split.validation) == sorted(expected)
    assert names(split.training) == sorted(set(items) - set(expected))


def test_groups_are_chosen_while_they_fit() -> None:
    """In the order of the hash, skipping those too large for what is left."""
    sizes = {"ax": 3, "bx": 5, "cx": 2, "dx": 6, "ex": 4}
    items = [f"{group}_{n}" for group, size in sizes.items() for n in range(size)]
    for seed in range(10):
        split = split_pairs(fake_pairs(*items), validation=35, seed=seed)
        expected, total = set(), 0
        for group in shuffled_by_hash(list(sizes), seed):
            if total + sizes[group] <= 7:  # 35 % of 20
                expected.add(group)
                total += sizes[group]
        if total >= 3.5:
            assert {name[:2] for name in names(split.validation)} == expected


def test_the_smallest_group_is_taken_if_all_are_too_large() -> None:
    items = [f"{g}_{n}" for g, size in (("ax", 9), ("bx", 4), ("cx", 8)) for n in range(size)]
    split = split_pairs(fake_pairs(*items), validation=10, seed=0)
    assert {name[:2] for name in names(split.validation)} == {"bx"}


@pytest.mark.parametrize(
    ("small", "target", "is_kept"),
    [
        (4, 2, True), (5, 2, False),  # at most twice as many as asked for
        (2, 1, True), (3, 1, False),  # for one, two
        (2, 4, True), (1, 4, False),  # at least half as many
    ],
)  # fmt: skip
def test_groups_are_kept_if_they_give_about_as_many_as_asked_for(
    small: int, target: int, is_kept: bool
) -> None:
    sizes = {"ax": small, "bx": 9, "cx": 10}
    items = [f"{g}_{n}" for g, size in sizes.items() for n in range(size)]
    split = split_pairs(fake_pairs(*items), validation=100 * target / len(items), seed=0)
    assert split.how.startswith("3 groups") == is_kept
    assert len(split.validation) == (small if is_kept else target)


@pytest.mark.parametrize(("percent", "is_kept"), [(0, True), (50, True), (70, False)])
def test_groups_are_kept_for_up_to_half_of_the_images(percent: float, is_kept: bool) -> None:
    split = split_pairs(fake_pairs(*CARS), validation=percent, seed=0)
    assert split.how.startswith("6 groups by name") == is_kept
    assert len(split.validation) == {0: 0, 50: 48, 70: 67}[percent]


def test_views_of_one_car_stay_on_one_side() -> None:
    for seed in range(20):
        split = split_pairs(fake_pairs(*CARS), validation=20, seed=seed)
        cars = [{name[:5] for name in names(side)} for side in (split.training, split.validation)]
        assert not cars[0] & cars[1]
        assert len(split.validation) == 16
        assert len(split.training) + len(split.validation) == len(CARS)


def test_split_is_a_function_of_names_and_seed() -> None:
    pairs = fake_pairs(*CARS)
    shuffled = Pairs(random.Random(1).sample(pairs, len(pairs)))
    for fold in (None, (2, 3)):
        first = split_pairs(pairs, validation=30, seed=3, fold=fold)
        again = split_pairs(shuffled, validation=30, seed=3, fold=fold)
        sides = [[*split.training, *split.validation] for split in (first, again)]
        assert sides[0] == sides[1] and len(first.training) == len(again.training)
    for fold in (None, (2, 3)):
        others = [split_pairs(pairs, validation=30, seed=s, fold=fold) for s in range(8)]
        assert len({tuple(split.validation) for split in others}) > 1


def test_a_new_image_moves_no_other() -> None:
    items = [f"n{number}q" for number in range(200)]
    before = set(names(split_pairs(fake_pairs(*items), validation=10, seed=0).validation))
    after = set(names(split_pairs(fake_pairs(*items, "new"), validation=10, seed=0).validation))
    assert len(before ^ after) <= 1


def test_a_pattern_names_the_group() -> None:
    items = [f"x_{patient}-{n}" for patient in "ab" for n in range(5)]
    split = split_pairs(fake_pairs(*items), validation=50, seed=0, pattern="_([ab])-")
    assert {p.name[2] for p in split.validation} != {p.name[2] for p in split.training}
    assert len(split.validation) == 5 and split.how == "2 groups by --group-pattern"
    groups = group_names(
        fake_pairs(*items, "other", "x_"), "^x_(a)?"
    )  # a bracket may match nothing
    assert groups["x_a-0"] == "a" and groups["x_b-0"] == groups["x_"] == ""
    assert groups["other"] == "other"


def test_a_pattern_that_is_in_no_name_would_mix_groups() -> None:
    with pytest.raises(
        UserError, match=r"--group-pattern '\^\(b\)_': is in no name, e\.g\. a/b_1;"
    ):
        split_pairs(fake_pairs("a/b_1", "a/b_2"), validation=50, seed=0, pattern="^(b)_")


def test_nothing_left_to_train_on() -> None:
    with pytest.raises(UserError, match=r"1 image in 1 group: none left to train on"):
        split_pairs(fake_pairs("only"), validation=10, seed=0)
    assert not split_pairs(fake_pairs("only"), validation=0, seed=0).validation


@pytest.mark.parametrize("count", [2, 3, 5])
def test_folds_share_out_the_groups(count: int) -> None:
    """Every image is validated on in one fold, groups are whole, sizes are close."""
    pairs = fake_pairs(*CARS)
    splits = [
        split_pairs(pairs, validation=10, seed=1, fold=(fold, count))
        for fold in range(1, count + 1)
    ]
    parts = [split.validation for split in splits]
    assert sorted(name for part in parts for name in names(part)) == sorted(names(pairs))
    groups = [{name[:5] for name in names(part)} for part in parts]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert max(map(len, parts)) - min(map(len, parts)) <= 16
    assert splits[1].how.startswith(f"fold 2 of {count}, 6 groups by name")


def test_large_groups_are_dealt_out_first() -> None:
    """5 and then 4 + 3 | 4: each to the fold that has the fewest so far."""
    sizes = {"ax": 3, "bx": 5, "cx": 4, "dx": 4}
    pairs = fake_pairs(*[f"{g}_{n}" for g, size in sizes.items() for n in range(size)])
    first, second = (
        split_pairs(pairs, validation=10, seed=0, fold=(fold, 2)).validation for fold in (1, 2)
    )
    assert {name[:2] for name in names(first)} == {"bx", "ax"}
    assert {name[:2] for name in names(second)} == {"cx", "dx"}


def test_more_folds_than_groups() -> None:
    with pytest.raises(UserError, match="--fold 1/7: there are 6 groups by name"):
        split_pairs(fake_pairs(*CARS), validation=10, seed=0, fold=(1, 7))
    assert split_pairs(fake_pairs(*CARS), validation=10, seed=0, fold=(6, 6)).validation


def test_a_list_decides_the_sides() -> None:
    sides = {"a": "validation", "b": "training", "c": "left out", "d": "training"}
    pairs = [Pair(name, Path(name), Path(name), side=side) for name, side in sides.items()]
    split = split_pairs(Pairs(pairs), validation=10, seed=0)
    assert (names(split.training), names(split.validation)) == (["b", "d"], ["a"])
    assert split.how == "by the list, 1 left out"
    assert split_pairs(Pairs([pairs[0], pairs[1]]), validation=10, seed=0).how == "by the list"
    with pytest.raises(UserError, match="no row's split is 'training'"):
        split_pairs(Pairs([pairs[0], pairs[2]]), validation=10, seed=0)


@pytest.mark.parametrize("percent", [25, 5])
def test_a_list_names_groups(percent: float) -> None:
    """They are kept even if the smallest has far more images than were asked for."""
    pairs = [Pair(f"n{k:02}q", Path(str(k)), Path(str(k)), group="abcd"[k % 4]) for k in range(16)]
    split = split_pairs(Pairs(pairs), validation=percent, seed=0)
    assert split.how == "4 groups by the list" and len(split.validation) == 4
    assert {p.group for p in split.training}.isdisjoint({p.group for p in split.validation})
    alone = [*pairs, Pair("alone", Path("x"), Path("x"))]
    assert group_names(Pairs(alone), None)["alone"] == "alone"


def test_an_image_can_not_be_in_both_folders() -> None:
    training, validation = fake_pairs("a", "b"), fake_pairs("c")
    split = split_by_folders(training, validation)
    assert split == Split(training, validation, "validation has its own folder")
    with pytest.raises(UserError, match="b is among --images too"):
        split_by_folders(training, fake_pairs("c", "b"))


def test_pairs_can_be_left_out_of_a_split() -> None:
    split = Split(fake_pairs("a", "b"), fake_pairs("c", "d"), "how")
    rest = split.without({"b", "c"})
    assert (names(rest.training), names(rest.validation), rest.how) == (["a"], ["d"], "how")


# -- split.csv -----------------------------------------------------------------------------


def test_a_written_split_is_read_again(tmp_path: Path) -> None:
    """split.csv is a list: the same sides, the same groups, whatever the names."""
    for side in ("imgs", "masks"):
        (tmp_path / side).mkdir()
    items = [f'car{car}, "x"_{view:02d}' for car in range(4) for view in range(3)]
    for name in items:
        for side in ("imgs", "masks"):
            (tmp_path / side / f"{name}.png").touch()
    pairs = find_pairs(tmp_path / "imgs", tmp_path / "masks")
    split = split_pairs(pairs, validation=25, seed=0)
    write_split(split, group_names(pairs, None), tmp_path / "split.csv")
    text = (tmp_path / "split.csv").read_text()
    assert text.count(',"training"') == 9 and text.count(',"validation"') == 3
    again = split_pairs(read_list(tmp_path / "split.csv"), validation=60, seed=9)
    for before, after in ((split.training, again.training), (split.validation, again.validation)):
        assert [p.image for p in after] == [p.image for p in before]
        assert [p.mask for p in after] == [p.mask for p in before]
        assert [p.group for p in after] == [p.name.rpartition("_")[0] for p in before]
    assert len(list(tmp_path.iterdir())) == 3  # no temporary file


def test_groups_in_a_written_split_keep_their_blanks(tmp_path: Path) -> None:
    """Two groups that differ by a blank are two when they are read again."""
    pairs = []
    for name in "abcdefg":
        path = tmp_path / f"{name}.png"
        path.touch()
        pairs.append(Pair(str(tmp_path / name), path, path))
    groups = dict(zip(names(Pairs(pairs)), ["car", " car", "car ", "  ", 'a "car", red', "two\r\nlines", "\tcar"], strict=True))  # fmt: skip
    write_split(Split(Pairs(pairs[:3]), Pairs(pairs[3:]), ""), groups, tmp_path / "split.csv")
    again = read_list(tmp_path / "split.csv")
    assert {pair.name: pair.group for pair in again} == groups


def test_sources_in_a_written_split_are_read_again(tmp_path: Path) -> None:
    pairs = []
    for name, source in (("a", "night"), ("b", None), ("c", "day, wet")):
        path = tmp_path / f"{name}.png"
        path.touch()
        pairs.append(Pair(str(tmp_path / name), path, path, source=source))
    write_split(Split(Pairs(pairs[:2]), Pairs(pairs[2:]), ""), {}, tmp_path / "split.csv")
    assert [pair.source for pair in read_list(tmp_path / "split.csv")] == [
        "night",
        None,
        "day, wet",
    ]
    write_split(Split(Pairs(pairs[1:2]), Pairs(), ""), {}, tmp_path / "split.csv")
    assert (tmp_path / "split.csv").read_text().startswith('"image","mask","group","split"\n')


def test_names_that_are_no_utf_8_are_written(tmp_path: Path) -> None:
    path = tmp_path / "c\udcff.png"
    path.touch()
    write_split(Split(Pairs([Pair("c", path, path)]), Pairs(), ""), {}, tmp_path / "split.csv")
    assert b',"","training"' in (tmp_path / "split.csv").read_bytes()
    (pair,) = read_list(tmp_path / "split.csv")
    assert (pair.image, pair.group, pair.side) == (path, None, "training")


# -- classes on both sides ----------------------------------------------------------------------


@pytest.mark.parametrize("fold", [None, (1, 5), (4, 5)])
@pytest.mark.parametrize("seed", range(6))
def test_a_class_of_two_groups_is_on_both_sides_and_groups_stay_whole(
    seed: int, fold: tuple[int, int] | None
) -> None:
    items = [f"car{c:02d}x_{view}" for c in range(12) for view in range(3)]
    pairs = fake_pairs(*items)
    rng = np.random.default_rng(seed)
    cars = rng.choice(12, 2 if fold is None else 5, replace=False)
    classes = np.array([[True, int(name[3:5]) in cars] for name in items])
    drawn = split_pairs(pairs, validation=20, seed=seed, fold=fold)
    split = spread_classes(drawn, pairs, classes)
    groups = group_names(pairs, None)
    sides = [
        set(map(groups.__getitem__, names(side))) for side in (split.training, split.validation)
    ]
    assert sides[0].isdisjoint(sides[1]) and len(sides[0] | sides[1]) == 12
    rare = {f"car{c:02d}x" for c in cars}
    assert all(rare & side for side in sides)
    if fold is None:
        assert len(split.validation) == len(drawn.validation)
    # a resumed run needs no masks for it
    assert move_groups(drawn, pairs, split.moved).fingerprint == split.fingerprint
    assert move_groups(drawn, pairs, ()).fingerprint == drawn.fingerprint
    assert (split.moved == ()) == (split.fingerprint == drawn.fingerprint)
    assert ("exchanged" in split.how) == bool(split.moved)


def test_folds_of_spread_classes_still_hold_each_pair_once() -> None:
    pairs = fake_pairs(*(f"{k:02d}x" for k in range(20)))
    classes = np.array([[True, k < 4] for k in range(20)])
    held_out: list[str] = []
    for index in range(1, 5):
        drawn = split_pairs(pairs, validation=0, seed=3, fold=(index, 4))
        split = spread_classes(drawn, pairs, classes)
        assert sum(name < "04" for name in names(split.validation)) == 1
        held_out += names(split.validation)
    assert sorted(held_out) == names(pairs)
