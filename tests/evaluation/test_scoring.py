"""Counts of pairs, against counts of the same pixels one by one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluation.examples import CPU, grey_predictor, write_pairs
from unet_ddp.data.labels import Labels
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.evaluation.dataset import EvaluationDataset
from unet_ddp.evaluation.results import Evaluation
from unet_ddp.evaluation.scoring import decide, decode, resize, score_pairs
from unet_ddp.heads import SOFTMAX
from unet_ddp.metrics.counts import Counts
from unet_ddp.prediction.predictor import Predictor

TWO, IGNORING = Labels((0, 255)), Labels((0, 255), ignore=9)
THREE = Labels((0, 255, 100))


def evaluate(
    folder: Path,
    pictures: dict[str, tuple[np.ndarray, np.ndarray]],
    predictor: Predictor,
    *,
    full_size: bool = True,
    threshold: float | None = None,
    tolerance: float | None = None,
) -> Evaluation:
    dataset = EvaluationDataset(
        write_pairs(folder, **pictures), predictor, full_size=full_size, resize_masks=False
    )
    how = {"threshold": threshold, "tolerance": tolerance, "workers": 0}
    return score_pairs(predictor, dataset, World(), **how)  # type: ignore[arg-type]


def draw(rng: np.random.Generator, values: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(0, 256, (6, 8)), rng.choice(values, (6, 8))


@pytest.mark.parametrize("threshold", [None, 0.3, 0.9])
def test_two_classes_are_counted_by_the_probability_of_the_foreground(
    tmp_path: Path, rng: np.random.Generator, threshold: float | None
) -> None:
    """The foreground's logit is 4 greys above the background's: (g + 1)^2 - (g - 1)^2."""
    pictures = {"a": draw(rng, (0, 255, 9)), "b": draw(rng, (0, 255, 9))}
    evaluation = evaluate(tmp_path, pictures, grey_predictor(IGNORING), threshold=threshold)
    table, as_trained = np.zeros((2, 2), int), np.zeros((2, 2), int)
    for record, (image, mask) in zip(evaluation.records, pictures.values(), strict=True):
        own = np.zeros((2, 2), int)
        for grey, value in zip(image.ravel(), mask.ravel(), strict=True):
            if value == 9:
                continue
            probability = 1 / (1 + math.exp(-4 * (grey / 127.5 - 1)))
            own[int(value == 255), int(probability >= (threshold or 0.5))] += 1
            as_trained[int(value == 255), int(probability >= 0.5)] += 1
        assert record.confusion.tolist() == own.tolist()
        table += own
    assert evaluation.confusion.tolist() == table.tolist()
    assert evaluation.as_trained.tolist() == as_trained.tolist()
    assert evaluation.histogram.sum(1).tolist() == table.sum(1).tolist()
    assert [record.name for record in evaluation.records] == ["a", "b"]
    assert (evaluation.threshold, evaluation.full_size) == (threshold, True)
    assert evaluation.labels is not None and evaluation.tolerance is None


def test_more_classes_are_counted_by_the_most_probable(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    image, mask = draw(rng, THREE.values)
    evaluation = evaluate(tmp_path, {"a": (image, mask)}, grey_predictor(THREE))
    table = np.zeros((3, 3), int)
    for grey, value in zip(image.ravel() / 127.5 - 1, mask.ravel(), strict=True):
        nearest = min(range(3), key=lambda k: abs(grey - (-1, 1, 0)[k]))
        table[THREE.values.index(value), nearest] += 1
    assert evaluation.confusion.tolist() == evaluation.as_trained.tolist() == table.tolist()
    assert evaluation.histogram[1].sum() == table.trace()


@pytest.mark.parametrize("full_size", [True, False])
def test_images_are_seen_at_the_networks_scale_and_scored_at_either(
    tmp_path: Path, full_size: bool
) -> None:
    """The left half is white; the mask says so but for one pixel in sixteen."""
    image = np.zeros((8, 8))
    image[:, :4] = 255
    mask = image.copy()
    mask[0, 0] = 0
    evaluation = evaluate(
        tmp_path, {"a": (image, mask)}, grey_predictor(TWO, scale=0.5), full_size=full_size
    )
    assert evaluation.as_trained.sum() == 16
    assert evaluation.confusion.tolist() == (
        [[32, 1], [0, 31]] if full_size else evaluation.as_trained.tolist()
    )
    assert evaluation.full_size is full_size


def test_bands_of_rows_make_no_difference(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = {"a": draw(rng, (0, 255))}
    predictor = grey_predictor(TWO, scale=0.5)
    whole = evaluate(tmp_path, pictures, predictor, threshold=0.4)
    monkeypatch.setattr("unet_ddp.evaluation.scoring.AT_ONCE", 9)  # one row of 8, and two of 4
    bands = evaluate(tmp_path, pictures, predictor, threshold=0.4)
    assert bands.confusion.tolist() == whole.confusion.tolist()
    assert bands.as_trained.tolist() == whole.as_trained.tolist()
    assert bands.histogram.tolist() == whole.histogram.tolist()
    assert bands.records[0].boundaries == whole.records[0].boundaries


@pytest.mark.parametrize(
    ("side", "scale", "off", "tolerance", "matched"),
    [(16, 1.0, 2, None, 0), (16, 1.0, 2, 1.0, 0), (16, 1.0, 2, 2.0, 16), (160, 0.5, 1, None, 160)],
)
def test_boundaries_match_within_the_tolerance(
    tmp_path: Path, side: int, scale: float, off: int, tolerance: float | None, matched: int
) -> None:
    """An edge that is some pixels off; 0.75 percent of the image's own diagonal are 0.2 and 1.7."""
    image, mask = np.zeros((side, side)), np.zeros((side, side))
    image[:, 6:], mask[:, 6 + off :] = 255, 255
    predictor = grey_predictor(TWO, scale=scale)
    evaluation = evaluate(tmp_path, {"a": (image, mask)}, predictor, tolerance=tolerance)
    foreground = evaluation.records[0].boundaries[1]
    assert (foreground.truth, foreground.predicted) == (side, side)
    assert (foreground.truth_matched, foreground.predicted_matched) == (matched, matched)
    assert evaluation.tolerance == tolerance


def test_records_of_all_ranks_are_joined_in_the_order_of_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    square = (np.full((2, 2), 255), np.full((2, 2), 255))
    predictor = grey_predictor(TWO)
    pairs = write_pairs(tmp_path, a=square, b=square, c=square)
    dataset = EvaluationDataset(pairs, predictor, full_size=True)
    first = score_pairs(predictor, dataset, World(rank=0, size=2), threshold=None, workers=0)
    assert [record.pair for record in first.records] == [0, 2]
    world = World(rank=1, size=2)
    monkeypatch.setattr(World, "gather", lambda self, mine: [(first.records, None), mine])
    joined = score_pairs(predictor, dataset, world, threshold=None, workers=0)
    assert [record.name for record in joined.records] == ["a", "b", "c"]
    error = UserError("of the other rank")
    monkeypatch.setattr(World, "gather", lambda self, mine: [([], error), mine])
    with pytest.raises(UserError, match="of the other rank"):
        score_pairs(predictor, dataset, world, threshold=None, workers=0)


def test_a_file_that_cannot_be_read_is_an_error_after_the_gathering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = grey_predictor(TWO)
    pairs = write_pairs(tmp_path, a=(np.zeros((2, 2)), np.full((2, 2), 7)))
    gathered = []
    monkeypatch.setattr(World, "gather", lambda self, mine: gathered.append(mine) or [mine])
    dataset = EvaluationDataset(pairs, predictor, full_size=True)
    with pytest.raises(UserError, match="a_mask"):
        score_pairs(predictor, dataset, World(), threshold=None, workers=0)
    assert len(gathered) == 1


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("broken")]
)
def test_a_rank_that_runs_out_of_memory_still_gathers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    """Else the others wait for it; any other error keeps its traceback."""
    predictor, black = grey_predictor(TWO), np.zeros((2, 2))
    dataset = EvaluationDataset(write_pairs(tmp_path, a=(black, black)), predictor, full_size=True)
    gathered = []
    monkeypatch.setattr(World, "gather", lambda self, mine: gathered.append(mine) or [mine])

    def fail(image: torch.Tensor) -> torch.Tensor:
        raise error

    monkeypatch.setattr(predictor, "logits", fail)
    with pytest.raises((UserError, RuntimeError)) as raised:
        score_pairs(predictor, dataset, World(size=2), threshold=None, workers=0)
    if str(error) == "broken":
        assert raised.value is error and gathered == []
    else:
        assert str(raised.value) == "rank 0: out of memory in scoring; use --device cpu"
        assert isinstance(raised.value, UserError) and len(gathered) == 1


def test_resizing_and_deciding() -> None:
    logits = torch.tensor([[[[0.0, 0.0]], [[2.0, -2.0]]]])  # (1, 2, 1, 2)
    assert resize(logits, torch.Size((1, 2))) is logits
    assert resize(logits, torch.Size((1, 4)))[0, 1, 0].tolist() == [2, 1, -1, -2]
    assert decide(logits, None, SOFTMAX).ids.tolist() == [[1, 0]]
    assert decide(logits, 0.95, SOFTMAX).ids.tolist() == [[0, 0]]
    assert decide(torch.zeros(1, 2, 1, 1), 0.5, SOFTMAX).ids.tolist() == [
        [1]
    ]  # at the threshold: foreground


@pytest.mark.parametrize(
    ("labels", "threshold"), [(TWO, None), (TWO, 0.3), (TWO, 385 / 1024), (THREE, None)]
)
def test_the_masks_that_are_scored_are_those_that_predict_writes_to_the_bit(
    tmp_path: Path, rng: np.random.Generator, labels: Labels, threshold: float | None
) -> None:
    """One `Prediction` decides: greys next to a threshold fall on the same side in both."""
    image, mask = rng.integers(0, 256, (40, 50)), rng.choice(labels.values, (40, 50))
    like = grey_predictor(labels)
    predictor = Predictor(like.models, device=CPU, threshold=threshold)
    dataset = EvaluationDataset(write_pairs(tmp_path, a=(image, mask)), predictor, full_size=True)
    evaluation = score_pairs(predictor, dataset, World(), threshold=threshold, workers=0)
    written = predictor(tmp_path / "a_image.png").mask.copy()  # torch warns of what is read-only
    sample = dataset.read(0)
    band = decide(predictor.logits(sample.image), threshold, SOFTMAX)
    assert np.array_equal(decode(labels, band, sample.truth[0].numpy()), written)
    table = Counts.confuse(torch.from_numpy(written)[None], sample.truth, labels.num_classes)
    assert evaluation.confusion.tolist() == table.tolist()
    best = Counts.of(
        predictor.logits(sample.image), sample.truth
    )  # as training's validation counts
    assert evaluation.as_trained.tolist() == best.confusion.tolist()
    assert evaluation.histogram.tolist() == best.histogram.tolist()
