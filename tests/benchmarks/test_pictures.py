"""The pictures of README and of the documentation."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
from PIL import Image

from benchmarks.pictures import (
    COLUMNS,
    FALSE_ALARM,
    HIT,
    MISS,
    ROOT,
    Scene,
    choose,
    draw_difference,
    draw_gains,
    draw_scenes,
    draw_times,
    read_gains,
    read_times,
)
from unet_ddp import Labels

LABELS = Labels(values=(0, 255))


def scene(predicted: list[list[int]]) -> Scene:
    truth = np.array([[0, 0], [1, 1]], np.uint8)
    return Scene(np.full((2, 2, 3), 100, np.uint8), truth, np.array(predicted, np.uint8))


def test_readme_and_the_chart_have_the_figures_of_the_table() -> None:
    page = (ROOT / "docs/quality.md").read_text(encoding="utf-8")
    times = read_times(page)
    assert [*times] == ["benchmarks/plain.py", "train.py"]
    assert times["train.py"].mean < times["benchmarks/plain.py"].mean
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, program in (
        ("plain PyTorch loop", "benchmarks/plain.py"),
        ("unet_ddp", "train.py` now"),
    ):
        *_, cells = re.findall(rf"^\| `?{re.escape(program)}`? \|(.*)\|$", page, re.M)[:1]
        early, _, late, *_ = (cell.strip() for cell in cells.split("|"))
        assert f"| {name} | {early} | {late} |" in readme
    drawn = draw_times(times)
    assert (ROOT / "docs/speed.svg").read_text(encoding="utf-8") == drawn, (
        "type python -m benchmarks.pictures"
    )
    bars = [each for each in ElementTree.fromstring(drawn) if each.tag.endswith("rect")]
    plain, ours = (float(each.attrib["width"]) for each in bars)
    assert np.isclose(
        ours / plain, times["train.py"].mean / times["benchmarks/plain.py"].mean, atol=0.01
    )


def test_the_chart_of_gains_has_the_scores_of_its_table() -> None:
    page = (ROOT / "docs/how-to/better-masks.md").read_text(encoding="utf-8")
    gains = read_gains(page)
    drawn = draw_gains(gains)
    assert (ROOT / "docs/gains.svg").read_text(encoding="utf-8") == drawn, (
        "type python -m benchmarks.pictures"
    )
    dots = [each for each in ElementTree.fromstring(drawn) if each.tag.endswith("circle")]
    places = [float(each.attrib["cx"]) for each in dots]
    scores = [score for gain in gains for score in (gain.before, gain.after)]
    assert len(scores) > 10
    slope, first = np.polyfit(scores, places, 1)
    assert slope > 0 and np.allclose(np.multiply(scores, slope) + first, places, atol=0.1)


def test_the_difference_shows_hits_misses_and_false_alarms() -> None:
    picture = draw_difference(scene([[1, 0], [0, 1]]))
    assert picture.tolist() == [[[*FALSE_ALARM], [30, 30, 30]], [[*MISS], [*HIT]]]


def test_the_best_the_median_and_the_worst_scene_are_shown() -> None:
    good, middle, bad = scene([[0, 0], [1, 1]]), scene([[0, 0], [1, 0]]), scene([[1, 1], [0, 0]])
    assert [good.dice, round(middle.dice, 3), bad.dice] == [1.0, 0.667, 0.0]
    assert [*map(id, choose([bad, good, middle]))] == [*map(id, (good, middle, bad))]
    assert draw_scenes([good, bad], LABELS).getpixel((0, 0))[3] == 0  # transparent between pictures


def test_the_picture_is_wide_and_small() -> None:
    path = ROOT / "docs/demo.png"
    with Image.open(path) as picture:
        assert picture.width >= 1200 and len(COLUMNS) == 4 and picture.mode == "RGBA"
    assert path.stat().st_size < 300_000
