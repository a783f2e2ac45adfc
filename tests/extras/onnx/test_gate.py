"""An export whose masks are worse is told from one whose masks are as good."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Ids
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.extras.onnx import quantisation
from unet_ddp.extras.onnx.gate import Verdict, judge


def verdict(*tables: tuple[list[list[int]], list[list[int]]]) -> Verdict:
    """Of the confusion matrices of checkpoint and export, image by image."""
    found = Verdict(["road", "car"], [f"image{k}" for k in range(len(tables))])
    for expected, other in tables:
        found.expected.append(torch.tensor(expected))
        found.found.append(torch.tensor(other))
        found.equal.append(0.5)
        found.seconds.append(0.5)
    return found


def test_a_fall_is_told_with_both_figures_the_classes_and_the_worst_image() -> None:
    good, bad = [[90, 0], [0, 10]], [[90, 0], [10, 0]]
    found = verdict((good, good), (good, bad))
    assert found.dice == (1.0, pytest.approx(2 / 3))
    assert found.explain() == (
        "Dice falls from 1.0000 to 0.6667 (road 1.0000 to 0.9730, car 1.0000 to 0.6667); worst image: "
        "image1, 1.0000 to 0.0000"
    )
    assert found.summarise() == "Dice 0.6667 (-0.3333), 50.000 % of pixels equal, 2.00 images/s"
    assert found.to_dict()["dice_difference"] == pytest.approx(-1 / 3)


def test_what_is_not_there_and_then_found_is_a_fall() -> None:
    """Dice is nan where no pixel has the class, in truth and prediction."""
    empty, wrong = [[100, 0], [0, 0]], [[99, 1], [0, 0]]
    assert verdict((empty, empty)).fall == 0
    assert verdict((empty, wrong)).fall == 1


def test_the_same_images_are_counted_for_both(tmp_path: Path) -> None:
    for folder in ("imgs", "masks"):
        (tmp_path / folder).mkdir()
    truths = {}
    for k, height in enumerate((8, 5)):
        truth = np.zeros((height, 6), np.uint8)
        truth[:, 3:] = 200
        truths[f"{k}"] = truth // 200
        Image.fromarray(truth).save(tmp_path / "masks" / f"{k}.png")
        Image.fromarray(np.zeros((height, 6, 3), np.uint8)).save(tmp_path / "imgs" / f"{k}.png")
    pairs = find_pairs(tmp_path / "imgs", tmp_path / "masks")
    pixels = Preprocessing.for_images(3, scale=0.5)
    data = SegmentationDataset(pairs, Labels((0, 200)), pixels.format, scale=0.5)

    def right(image: Path) -> Ids:
        return truths[image.stem]

    def black(image: Path) -> Ids:
        return np.zeros_like(truths[image.stem])

    found = judge({"same": right, "black": black}, right, data)
    assert found["same"].fall == 0 and found["same"].shares == 1
    assert found["black"].dice == (1, 0) and found["black"].shares == 0.5
    assert found["black"].names == ["0", "1"]
    assert [int(table.sum()) for table in found["black"].found] == [48, 30]


@pytest.mark.parametrize(("count", "left"), [(3, []), (4, [1]), (8, [1, 2]), (15, [1, 2])])
def test_of_the_layers_up_to_a_quarter_is_left_in_float32(
    monkeypatch: pytest.MonkeyPatch, count: int, left: list[int]
) -> None:
    """Those first that cost most; twice as many each time."""
    ranked = [f"layer {k}" for k in range(count)]

    def quantise(model: Any, images: Any, excluded: Sequence[str] = ()) -> list[str]:
        return [*excluded]

    monkeypatch.setattr(quantisation, "quantise", quantise)
    monkeypatch.setattr(quantisation, "rank_layers", lambda model, images: ranked)
    found = [*quantisation.quantised(None, [])]
    assert found == [([], []), *((ranked[:n], ranked[:n]) for n in left)]


class Model:
    """Stands for an ONNX model of four layers, some of which are in int8, as its probabilities say."""

    costs: ClassVar = {"a": 0.1, "b": 0.4, "c": 0.0, "d": 0.2}

    def __init__(self, excluded: Sequence[str] = tuple(costs)) -> None:
        nodes = [SimpleNamespace(name=name) for name in self.costs]
        self.graph = SimpleNamespace(node=nodes)
        self.cost = sum(cost for name, cost in self.costs.items() if name not in excluded)

    def SerializeToString(self) -> float:  # noqa: N802  # onnx's name
        return self.cost


def test_the_layer_that_alone_in_int8_changes_most_is_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def open_session(cost: float, providers: Any) -> Any:
        return SimpleNamespace(run=lambda names, inputs: [np.full(3, 0.5 + cost)])

    def quantise(model: Any, images: Any, excluded: Sequence[str] = ()) -> Model:
        return Model(excluded)

    runtime = SimpleNamespace(InferenceSession=open_session)
    monkeypatch.setattr(quantisation, "import_extra", lambda *names: runtime)
    monkeypatch.setattr(quantisation, "quantise", quantise)
    monkeypatch.setattr(quantisation, "find_layers", lambda model: dict.fromkeys(Model.costs, ""))
    images = [np.zeros((2, 2, 3), np.uint8)]
    assert quantisation.rank_layers(Model(), images) == ["b", "d", "a", "c"]
