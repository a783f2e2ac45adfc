"""Sources of images that have a share of each step."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checks.test_rules import scanned
from tests.tiny import make_data
from unet_ddp.checks.rare import advise_shares
from unet_ddp.checks.table import Table
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.samplers import TrainingSampler
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError
from unet_ddp.extras.steps.shares import SharedOrder, Source, count_images, plan_shares

SHARES = [
    ("7/10 3/10", 4), ("1/3 1/3 1/3", 4), ("1/2 1/4 1/4", 8), ("1", 6), ("2/3 1/6 1/6", 6),
    ("3/8 3/8 1/8 1/8", 9), ("61/100 13/100 26/100", 12),
]  # fmt: skip


@pytest.mark.parametrize(("shares", "images"), SHARES)
def test_each_step_has_the_shares_and_all_steps_have_them_exactly(shares: str, images: int) -> None:
    exact = [Fraction(share) for share in shares.split()]
    totals = list(islice(count_images(exact, images, 0), 2001))
    assert totals[0] == [0] * len(exact)
    for step, (before, after) in enumerate(pairwise(totals), start=1):
        taken = [b - a for a, b in zip(before, after, strict=True)]
        assert sum(taken) == images
        for share, count, total in zip(exact, taken, after, strict=True):
            assert abs(count - share * images) < 1
            assert abs(total - share * images * step) < 1  # equal, where that is whole
    for step in (0, 1, 7, 1234):  # by arithmetic, from any step on
        assert list(islice(count_images(exact, images, step), 20)) == totals[step : step + 20]


def test_no_source_is_far_from_its_share_after_any_step(rng: np.random.Generator) -> None:
    for _ in range(30):
        weights = rng.integers(1, 30, rng.integers(2, 9)).tolist()
        shares = [Fraction(weight, sum(weights)) for weight in weights]
        images = int(rng.integers(2, 40))
        for step, total in enumerate(islice(count_images(shares, images, 0), 300)):
            assert sum(total) == images * step
            gaps = [abs(n - share * images * step) for n, share in zip(total, shares, strict=True)]
            assert max(gaps) < 2


def order_of(*sizes: int, shares: str) -> SharedOrder:
    """Sources of these sizes; their images alternate in the set, as far as they last."""
    rows: list[list[int]] = [[] for _ in sizes]
    row = 0
    for place in range(max(sizes)):
        for own, size in zip(rows, sizes, strict=True):
            if place < size:
                own.append(row)
                row += 1
    given = map(Fraction, shares.split())
    named = zip("abcd", given, rows, strict=False)
    return SharedOrder([Source(name, share, np.array(own)) for name, share, own in named])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("steps", [None, 1, 5, 40])
def test_every_world_takes_the_same_shares(steps: int | None, size: int) -> None:
    """Sources of 30, 9 and 5 images, 12 in a global batch; epochs of a pass over all, or of steps."""
    order = order_of(30, 9, 5, shares="1/2 1/3 1/6")
    sources = {int(row): source.name for source in order.sources for row in source.rows}
    samplers = [
        TrainingSampler(44, 12 // size, rank=rank, size=size, seed=9, steps=steps, order=order)
        for rank in range(size)
    ]
    assert samplers[0].steps == (steps or 44 // 12)

    def take(epoch: int, step: int, last: int) -> list[tuple[int, int]]:
        for sampler in samplers:
            sampler.start_at(epoch, step, last=last)
        dealt = [list(sampler) for sampler in samplers]
        assert [len(each) for each in dealt] == [len(sampler) for sampler in samplers]
        return [key for keys in zip(*dealt, strict=True) for key in keys]

    whole, epoch = take(0, 0, 5), samplers[0].steps * 12
    alone = TrainingSampler(44, 12, rank=0, size=1, seed=9, steps=steps, order=order)
    alone.start_at(0, 0, last=5)
    assert whole == list(alone) and len(whole) == 6 * epoch
    for begin in range(0, len(whole), 12):
        counts = Counter(sources[row] for _, row in whole[begin : begin + 12])
        assert counts == {"a": 6, "b": 4, "c": 2}
    for source in order.sources:  # used up before any image of it comes again
        steps_of = [
            [key for key in whole[begin : begin + 12] if sources[key[1]] == source.name]
            for begin in range(0, len(whole), 12)
        ]
        assert all(max(one)[0] <= min(other)[0] for one, other in pairwise(steps_of))
        passes = Counter(number for step in steps_of for number, _ in step)
        assert {*[*passes.values()][:-1]} <= {len(source.rows)} and list(passes) == [
            *range(len(passes))
        ]
    assert len(set(whole)) == len(whole)
    for start in ((0, 1, 0), (2, 0, 2), (3, samplers[0].steps - 1, 5)):
        begin = start[0] * epoch + start[1] * 12
        assert take(*start) == whole[begin : (start[2] + 1) * epoch]


def test_images_of_a_step_are_mixed_and_sources_are_not_in_step() -> None:
    """Else each of two ranks would get one source, and the same pairs of images would meet in each pass."""
    order = order_of(40, 40, shares="1/2 1/2")
    sampler = TrainingSampler(80, 8, rank=0, size=1, seed=1, order=order)
    sampler.start_at(0, 0, last=3)
    kinds = [row % 2 for _, row in sampler]
    first = Counter(kinds[::2])
    assert 0.3 < first[0] / first.total() < 0.7
    keys = list(sampler)
    even, odd = ([row // 2 for _, row in keys if row % 2 == kind][:40] for kind in (0, 1))
    assert sum(a == b for a, b in zip(even, odd, strict=True)) < 10


NO_TABLE = Table.from_scan([])


def pairs_of(*sources: str | None) -> Pairs:
    return Pairs(
        Pair(f"{k}", Path(f"{k}.png"), Path(f"{k}_m.png"), source=source)
        for k, source in enumerate(sources)
    )


def test_the_sources_of_a_list_get_their_shares() -> None:
    config = DataConfig(pairs_file="a.csv", shares=("night=0.25", "a=b=3/4"))
    order = plan_shares(config, NO_TABLE, pairs_of("a=b", "night", "a=b"))
    assert order and [(each.name, each.share, each.rows.tolist()) for each in order.sources] == [
        ("night", Fraction(1, 4), [1]), ("a=b", Fraction(3, 4), [0, 2]),
    ]  # fmt: skip
    assert order.describe() == "shares of each step: 0.25 night (1 image), 0.75 a=b (2 images)"


@pytest.mark.parametrize(
    ("sources", "shares", "message"),
    [
        ([None], "a=1", "--shares: a.csv has no column source; add one, with a name in each row"),
        (["a", None], "a=1", "--shares: 1.png has no source in a.csv; fill the column"),
        (["a", "b"], "a=0.9 c=0.1", "--shares c=0.1: no training image of a.csv has this source; it has 'a', 'b'"),
        (["a", "b", "b"], "a=1", "--shares: none for 'b', the source of 2 images in a.csv; name it, or remove its rows"),
    ],
)  # fmt: skip
def test_sources_without_images_or_shares_are_one_line(
    sources: list[str | None], shares: str, message: str
) -> None:
    config = DataConfig(pairs_file="a.csv", shares=tuple(shares.split()))
    with pytest.raises(UserError) as refused:
        plan_shares(config, NO_TABLE, pairs_of(*sources))
    assert str(refused.value) == message


def test_a_share_of_less_than_an_image_is_one_line() -> None:
    order = order_of(10, 10, shares="19/20 1/20")
    TrainingSampler(20, 10, rank=0, size=2, seed=0, order=order)
    with pytest.raises(UserError) as refused:
        TrainingSampler(20, 6, rank=0, size=2, seed=0, order=order)
    assert str(refused.value) == (
        "--shares b=0.05: of the 12 images of a step, it is 0.6; use a share of at least 1/12, or a larger "
        "--batch-size"
    )


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ("a=0.5 b=0.4", "--shares a=0.5 b=0.4: add up to 0.9, not 1; of three equal ones, each is 1/3"),
        ("a=0.5 a=0.5", "--shares: a is given twice; give each source once"),
        *(
            (text, f"--shares {text}: use auto, or SOURCE=SHARE, e.g. street=0.7 or street=2/3")
            for text in ("a", "a=", "=1", "a=x", "a=0", "a=0/3", "a=1/0", "a=-1", "a=1e3", "a=0.33333")
        ),
    ],
)  # fmt: skip
def test_shares_that_are_none_are_one_line(shares: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        DataConfig(pairs_file="a.csv", shares=tuple(shares.split())).check()
    assert str(refused.value) == message


def test_shares_are_for_lists_and_not_with_balance() -> None:
    with pytest.raises(
        UserError, match=r"^--shares: is for a --list with a column source, or a pack"
    ):
        DataConfig(shares=("a=1",), images="a", masks="b").check()
    with pytest.raises(UserError, match=r"^--shares and --balance: use one of them$"):
        DataConfig(pairs_file="a.csv", shares=("a=1",), balance=5.0).check()
    DataConfig(images="pack", shares=("a=1",)).check()
    DataConfig(images="a", masks="b", shares=("auto",)).check()
    DataConfig(pairs_file="a.csv", shares=("a=1/3", "b=1/3", "c=1/3")).check()


def show(*looks: Sequence[int]) -> Table:
    """Images with these thumbnails."""
    return Table.from_scan(
        [scanned(f"{k}", thumbnail=text_of(look)) for k, look in enumerate(looks)]
    )


def text_of(look: Sequence[int]) -> str:
    return base64.b64encode(bytes(look)).decode()


BRIGHT, DARK = [0] * 20 + [255] * 44, [0] * 40 + [255] * 24  # in the mean, not at most pixels


def test_auto_takes_half_of_the_rare_kind_of_images_to_train_on() -> None:
    table = show(*[BRIGHT] * 20, *[DARK] * 60, [0] * 64)
    order = plan_shares(DataConfig(shares=("auto",)), table, table.pairs)
    assert order and order.describe() == "shares of each step: 0.5 dark (61 images), 0.5 bright (20 images)"  # fmt: skip
    assert [source.rows.tolist() for source in order.sources] == [[*range(20, 81)], [*range(20)]]
    assert plan_shares(DataConfig(shares=("auto",)), table, table.pairs[1:]) is None
    data = make_data(split=Split(table.pairs[1:], table.pairs[:1], ""), labels=Labels((0, 1)))
    adapted = DATA_PARTS.adapt(DataConfig(shares=("auto",)), table, data, 0)
    assert adapted.order is data.order
    assert adapted.notes == [
        "shares: none, with 19 bright images of 80: no kind is rare, or one has too few"
    ]
    balanced = DataConfig(shares=("auto",), balance=50.0)
    balanced.check()
    adapted = DATA_PARTS.adapt(balanced, table, make_data(split=data.split, labels=data.labels), 0)
    assert len(adapted.notes) == 1 and adapted.notes[0].startswith("balance: 50% of the samples")


def test_noise_without_objects_is_not_bright() -> None:
    """A thumbnail of noise is stretched like any other, so its mean may be above the middle."""
    noise = [
        scanned(f"n{k}", values=(0,), counts=(1,), thumbnail=text_of(BRIGHT)) for k in range(30)
    ]
    table = Table.from_scan(
        [*noise, *[scanned(f"o{k}", thumbnail=text_of(DARK)) for k in range(60)]]
    )
    config = DataConfig(instances=True)
    assert advise_shares(config, table, table.pairs) == []
    assert plan_shares(replace(config, shares=("auto",)), table, table.pairs) is None


@pytest.mark.parametrize("images", [1, 3])
def test_steps_of_auto_may_be_of_one_image(images: int) -> None:
    table = show(*[BRIGHT] * 20, *[DARK] * 60)
    order = plan_shares(DataConfig(shares=("auto",)), table, table.pairs)
    assert order
    sampler = TrainingSampler(80, images, rank=0, size=1, seed=3, order=order)
    sampler.start_at(0, 0, last=0)
    bright = [row < 20 for _, row in sampler]
    assert abs(2 * sum(bright) - len(bright)) < 2 and len(bright) >= 78


@pytest.mark.parametrize(
    ("bright", "dark", "flags", "share"),
    [
        (20, 80, {}, "20 %"),
        (130, 60, {}, "68 %"),
        (19, 80, {}, None),  # each would come too often
        (40, 60, {}, None),  # hardly rarer
        (20, 80, {"instances": False}, None),
        (20, 80, {"balance": 50.0}, None),
        (20, 80, {"shares": ("auto",)}, None),
    ],
)
def test_shares_are_advised_for_objects_in_images_of_both_kinds(
    bright: int, dark: int, flags: dict[str, Any], share: str | None
) -> None:
    table = show(*[BRIGHT] * bright, *[DARK] * dark)
    lines = advise_shares(DataConfig(**({"instances": True} | flags)), table, table.pairs)
    assert lines == [] if share is None else lines[0].startswith(f"images: {share} are bright")
    of_list = Pairs(replace(pair, source="x") for pair in table.pairs)
    assert advise_shares(DataConfig(instances=True), table, of_list) == []


def test_each_part_of_the_data_adds_its_note_to_the_others() -> None:
    names = "abcd"
    pairs = Pairs(replace(pair, source="x") for pair in pairs_of(*names))
    table = Table.from_scan([scanned(name, values=(0, 255), counts=(1, 1)) for name in names])
    data = make_data(split=Split(pairs, pairs, ""), labels=Labels((0, 255)), notes=["first"])
    config = DataConfig(pairs_file="a.csv", shares=("x=1",), validation_images=9)
    assert DATA_PARTS.adapt(config, table, data, 0).notes == [
        "first", "shares of each step: 1 x (4 images)",
    ]  # fmt: skip
    config = replace(config, validation_images=2)
    assert DATA_PARTS.adapt(config, table, data, 0).notes == [
        "first", "validation: 2 of 4 images after each epoch", "shares of each step: 1 x (4 images)",
    ]  # fmt: skip
