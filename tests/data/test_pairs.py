"""Which mask belongs to which image, and what is kept for validation."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from unet_ddp.data.pairs import Pair, find_pairs, read_list
from unet_ddp.data.splits import Split, group_of, split_pairs, write_split
from unet_ddp.errors import UserError


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@pytest.mark.parametrize(
    ("images", "masks", "partners"),
    [
        (["a.jpg", "b.jpg"], ["a.png", "b.png"], {"a": "a.png", "b": "b.png"}),
        (["a.jpg", "b.jpg"], ["a_mask.gif", "b_mask.gif"], {"a": "a_mask.gif", "b": "b_mask.gif"}),
        (["1.jpg", "10.jpg"], ["1_m.png", "10_m.png"], {"1": "1_m.png", "10": "10_m.png"}),
        (["x.1.JPG", "x.2.JPG"], ["x.1.png", "x.2.PNG"], {"x.1": "x.1.png", "x.2": "x.2.PNG"}),
        (["p/a.bmp", "q/a.bmp"], ["p/a.tif", "q/a.tif"], {"p/a": "p/a.tif", "q/a": "q/a.tif"}),
        (["ä ö.webp"], ["ä ö_mask.png"], {"ä ö": "ä ö_mask.png"}),
        (["a.jpg", ".DS_Store", "._a.jpg"], ["a.png", "Thumbs.db"], {"a": "a.png"}),
        (["a.jpg"], ["a_mask.png", "orphan_mask.png"], {"a": "a_mask.png"}),
    ],
)
def test_partners(
    tmp_path: Path, images: list[str], masks: list[str], partners: dict[str, str]
) -> None:
    touch(tmp_path / "i", *images)
    touch(tmp_path / "m", *masks)
    pairs, note = find_pairs(tmp_path / "i", tmp_path / "m")
    found = {pair.name: pair.mask.relative_to(tmp_path / "m").as_posix() for pair in pairs}
    assert found == partners
    assert ("orphan" in note) == ("orphan_mask.png" in masks)


def test_links_in_a_circle_are_followed_once(tmp_path: Path) -> None:
    touch(tmp_path / "i", "sub/a.jpg")
    touch(tmp_path / "m", "sub/a.png")
    (tmp_path / "i" / "sub" / "loop").symlink_to(tmp_path / "i")
    pairs, _ = find_pairs(tmp_path / "i", tmp_path / "m")
    assert [pair.name for pair in pairs] == ["sub/a"]


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    touch(tmp_path / "i", "lone.jpg", "twice.jpg", "twice.png", "two.jpg", "good.jpg")
    touch(tmp_path / "m", "twice.png", "two.png", "two.gif", "good.png")
    with pytest.raises(UserError) as caught:
        find_pairs(tmp_path / "i", tmp_path / "m")
    assert "no mask for" in str(caught.value) and "lone.jpg" in str(caught.value)
    assert "two images of one name" in str(caught.value)
    assert "two masks for" in str(caught.value) and "two.gif" in str(caught.value)


def fake_pairs(*names: str) -> list[Pair]:
    return [Pair(name, Path(name), Path(name)) for name in names]


CARS = [f"car{c}x_{view:02d}" for c in "abcdef" for view in range(16)]


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (CARS, 6),
        ([f"img_{n:03d}" for n in range(40)], 0),  # a prefix that all share is none
        ([f"a_{n}" for n in range(6)] + [f"b_{n}" for n in range(6)], 0),  # fewer than three
        ([f"a_{n}" for n in range(9)] + ["b_1", "b_2", "c_1", "c_2"], 3),  # the small ones will do
        ([f"a_{n}" for n in range(98)] + ["b_1", "c_1"], 0),  # they are far too few
        ([f"s{s}/slice{n}" for s in range(5) for n in range(4)], 0),
        ([f"s{s}/slice_{n}" for s in range(5) for n in range(4)], 5),
        ([f"drive{d}_f{n:05d}" for d in range(4) for n in range(5)], 4),
    ],
)
def test_groups_are_detected_with_care(names: list[str], groups: int) -> None:
    how = split_pairs(fake_pairs(*names), validation=20, seed=0).how
    assert how.startswith(f"{groups} groups by name" if groups else "image by image")


def test_views_of_one_car_stay_on_one_side() -> None:
    for seed in range(20):
        split = split_pairs(fake_pairs(*CARS), validation=20, seed=seed)
        cars = [{pair.name[:5] for pair in side} for side in (split.training, split.validation)]
        assert not cars[0] & cars[1]
        assert len(split.validation) == 16
        assert len(split.training) + len(split.validation) == len(CARS)


def test_split_is_a_function_of_names_and_seed() -> None:
    pairs = fake_pairs(*CARS)
    shuffled = random.Random(1).sample(pairs, len(pairs))
    first = split_pairs(pairs, validation=30, seed=3)
    again = split_pairs(shuffled, validation=30, seed=3)
    assert first.validation == again.validation
    assert first.training == again.training
    others = {tuple(split_pairs(pairs, validation=30, seed=s).validation) for s in range(8)}
    assert len(others) > 1


def test_a_new_image_moves_no_other() -> None:
    names = [f"n{number}q" for number in range(200)]
    before = {p.name for p in split_pairs(fake_pairs(*names), validation=10, seed=0).validation}
    after = {
        p.name for p in split_pairs(fake_pairs(*names, "new"), validation=10, seed=0).validation
    }
    assert len(before ^ after) <= 1


def test_pattern_names_the_group() -> None:
    names = [f"x_{patient}-{n}" for patient in "ab" for n in range(5)]
    split = split_pairs(fake_pairs(*names), validation=50, seed=0, pattern="_([ab])-")
    assert {p.name[2] for p in split.validation} != {p.name[2] for p in split.training}
    assert len(split.validation) == 5


def test_nothing_left_to_train_on() -> None:
    with pytest.raises(UserError, match="none left to train on"):
        split_pairs(fake_pairs("only"), validation=10, seed=0)
    assert split_pairs(fake_pairs("only"), validation=0, seed=0).validation == []


@pytest.mark.parametrize("count", [2, 3, 5])
def test_folds_share_out_the_groups(count: int) -> None:
    """Every image is validated on in one fold, groups are whole, sizes are close."""
    pairs = fake_pairs(*CARS)
    parts = [
        split_pairs(pairs, validation=10, seed=1, folds=(count, fold)).validation
        for fold in range(1, count + 1)
    ]
    assert sorted(pair.name for part in parts for pair in part) == sorted(p.name for p in pairs)
    groups = [{pair.name[:5] for pair in part} for part in parts]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert max(map(len, parts)) - min(map(len, parts)) <= 16
    shuffled = random.Random(2).sample(pairs, len(pairs))
    assert split_pairs(shuffled, validation=10, seed=1, folds=(count, 1)).validation == parts[0]


def test_a_written_split_is_read_again(tmp_path: Path) -> None:
    """split.csv is a list: the same sides, the same groups, whatever the names."""
    for side in ("imgs", "masks"):
        (tmp_path / side).mkdir()
    names = [f'car{car}, "{view}"_{view:02d}' for car in range(4) for view in range(3)]
    for name in names:
        for side in ("imgs", "masks"):
            (tmp_path / side / f"{name}.png").touch()
    pairs, _ = find_pairs(tmp_path / "imgs", tmp_path / "masks")
    split = split_pairs(pairs, validation=25, seed=0)
    write_split(split, group_of(pairs, None), tmp_path / "split.csv")
    again = split_pairs(read_list(tmp_path / "split.csv").pairs, validation=60, seed=9)
    for before, after in ((split.training, again.training), (split.validation, again.validation)):
        assert [p.image for p in after] == [p.image for p in before]
        assert [p.mask for p in after] == [p.mask for p in before]
    assert not list(tmp_path.glob("*.tmp"))


def test_groups_in_a_written_split_keep_their_blanks(tmp_path: Path) -> None:
    """Two groups that differ by a blank are two when they are read again."""
    pairs = []
    for name in "abcdefg":
        path = tmp_path / f"{name}.png"
        path.touch()
        pairs.append(Pair(str(tmp_path / name), path, path))
    names = ["car", " car", "car ", "  ", 'a "car", red', "two\nlines", "\tcar"]
    groups = {pair.name: group for pair, group in zip(pairs, names, strict=True)}
    write_split(Split(pairs[:3], pairs[3:], ""), groups, tmp_path / "split.csv")
    again = read_list(tmp_path / "split.csv")
    assert again.problems == []
    assert {pair.name: pair.group for pair in again.pairs} == groups
