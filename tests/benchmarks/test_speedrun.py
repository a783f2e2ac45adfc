"""The speedrun's programs are scored alike, on images that none of them trains on."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.plain import score
from benchmarks.speedrun import Run, Task, over, spread
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


def test_each_turn_leaves_out_another_group(tmp_path: Path) -> None:
    for name in ("a_1", "a_2", "b_1", "c_1"):
        make_pair(tmp_path, name)
    task = Task(tmp_path, "[^_]*", 1.0, 2, -1, 1, 0)
    out = []
    for turn in range(4):
        with task.write_pairs(turn, tmp_path / "pairs.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [Path(r["image"]).stem for r in rows] == [Path(r["mask"]).stem for r in rows]
        out.append([Path(r["image"]).stem for r in rows if r["split"] == "validation"])
    assert out == [["a_1", "a_2"], ["b_1"], ["c_1"], ["a_1", "a_2"]]


def test_marks_and_their_spread() -> None:
    run = Run([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [0.8, 0.96, 0.95], 0.9)
    assert (run.reaches(0.95), run.reaches(0.97)) == ((2.0, 5.0), (None, None))
    assert spread([1.0, 2.0, 3.0]) == "2.0 ± 1.0"
    assert spread([1.0, None]) == "1.0 ± 0.0 (1 of 2 turns)"
    assert over([1.0, None, 3.0], [2.0, 2.0, 3.0]) == "0.75 (0.50 to 1.00)"
