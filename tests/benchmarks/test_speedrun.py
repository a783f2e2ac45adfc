"""The speedrun's programs are scored alike, on images that none of them trains on."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.plain import score
from benchmarks.speedrun import Run, Task, open_camvid, open_carvana, over, read_scores
from benchmarks.timing import spread
from tests.conftest import make_pair
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.metrics.counts import Counts
from unet_ddp.metrics.scores import Scores


class Given(nn.Module):
    """A network whose output is known: the same for each batch."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, images: Tensor) -> Tensor:
        return self.logits[: len(images)]


@pytest.mark.parametrize("classes", [2, 5])
def test_the_plain_loop_scores_as_train_py_does(classes: int) -> None:
    random = torch.Generator().manual_seed(classes)
    logits = torch.randn(4, classes, 6, 7, generator=random)
    masks = torch.randint(-1, classes - (classes > 2), (6, 6, 7), generator=random)
    images = torch.zeros(6, 3, 6, 7, dtype=torch.uint8)
    own = score(Given(logits), images, masks.masked_fill(masks < 0, -100), classes)
    ids = masks.masked_fill(masks < 0, IGNORE_ID).to(torch.uint8)
    counts = Counts.of(torch.cat([logits, logits[:2]]), ids)
    scores = Scores.from_confusion(counts.confusion)
    assert own == pytest.approx([scores.dice, scores.iou])


@pytest.mark.parametrize(
    ("line", "dice", "iou"),
    [
        ("epoch 1: loss 0.97, validation Dice 0.5556 at threshold 0.260 (best), 0.1203 at 0.5, 1.5 images/s", 0.1203, None),
        ("epoch 1: loss 0.97, validation Dice 0.5556 at threshold 0.260, 0.1203 at 0.5, 1.5 images/s", 0.1203, None),
        ("epoch 3: loss 0.4, validation Dice 0.7, IoU 0.6, 3 s", 0.7, 0.6),
        ("epoch 3: loss 0.4, validation Dice 0.7, 3 s", 0.7, None),
    ],
)  # fmt: skip
def test_programs_are_compared_by_the_most_probable_class(
    line: str, dice: float, iou: float | None
) -> None:
    found = read_scores(line)
    assert found is not None and found[0] == dice
    assert found[1] == iou or (iou is None and math.isnan(found[1]))
    assert read_scores("best: epoch 3, validation Dice 0.8") is None


def test_each_turn_leaves_out_another_group(tmp_path: Path) -> None:
    pairs = [make_pair(tmp_path, name) for name in ("a_1", "a_2", "b_1", "c_1")]
    out = []
    for turn in range(4):
        with Task(pairs, {}, 1.0).write_pairs(turn, tmp_path / "pairs.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert sorted((Path(r["image"]), Path(r["mask"])) for r in rows) == pairs
        out.append([Path(r["image"]).stem for r in rows if r["split"] == "validation"])
    assert out == [["a_1", "a_2"], ["b_1"], ["c_1"], ["a_1", "a_2"]]


def test_the_images_are_known_by_their_public_names(tmp_path: Path) -> None:
    cars = open_carvana(tmp_path)
    assert len(cars.pairs) == 96 and len({image.name[:12] for image, _ in cars.pairs}) == 6
    first = tmp_path / "imgs/0ee135a3cccc_01.jpg", tmp_path / "masks/0ee135a3cccc_01_mask.gif"
    assert cars.pairs[0] == first
    (tmp_path / "CamVid").mkdir()
    for side, count in (("train", 367), ("val", 1), ("test", 1)):
        lines = (f"/x/{side}/d{k:03}.png /x/{side}annot/d{k:03}.png\n" for k in range(count))
        (tmp_path / f"CamVid/{side}.txt").write_text("".join(lines))
    frames = [int(image.stem[1:]) for image, _ in open_camvid(tmp_path, 10).pairs]
    assert len(frames) == 36 and (frames[:6], frames[-1]) == ([0, 10, 20, 31, 41, 52], 366)


def test_a_program_is_a_command_with_settings_in_braces(tmp_path: Path) -> None:
    task = Task([], {"scale": 0.125, "flags": "--budget 3m"}, 1.0)
    words = task.command(
        "python 'my loop.py' {pairs} {scale} {seed} {flags}", pairs="p.csv", seed=3
    )
    assert words == [sys.executable, "my loop.py", "p.csv", "0.125", "3", "--budget", "3m"]


def test_marks_and_their_spread() -> None:
    run = Run([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [0.8, 0.96, 0.95], 0.9)
    assert (run.reaches(0.95), run.reaches(0.97)) == ((2.0, 5.0), (None, None))
    assert spread([1.0, 2.0, 3.0]) == "2.0 ± 1.0"
    assert spread([1.0, None]) == "1.0 (1 of 2 turns)"
    assert over([1.0, None, 3.0], [2.0, 2.0, 3.0]) == "0.75 (0.50 to 1.00)"
