"""Charts: the right points at the right places, in the page's colours, the same on every run."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.evaluation.examples import example_evaluation
from unet_ddp.data.labels import Labels
from unet_ddp.extras.report.charts import (
    Chart,
    Line,
    draw,
    draw_file,
    history_charts,
    probability_charts,
)

ROWS = [
    {"epoch": "1", "loss": "1.5", "dice_loss": "0.5", "learning_rate": "0.0005"},
    {"epoch": "2", "loss": "1.0", "dice_loss": "", "learning_rate": "0.001"},
    {"epoch": "3", "loss": "0.5", "dice_loss": "0.", "learning_rate": "1e-"},
]


def parse(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg.replace("xlink:", ""))


def dots(chart: Chart) -> list[tuple[str, float, float, str]]:
    """Colour, x, y and tooltip of each dot."""
    return [
        (re.findall(r"--s\d", use.attrib["style"])[0], float(use.attrib["x"]), float(use.attrib["y"]),
         use.findtext("title") or "")
        for use in parse(chart).iter("use")
    ]  # fmt: skip


def lines(chart: Chart) -> list[tuple[str, list[float]]]:
    """Style and coordinates of each line but the grid's."""
    paths = [(path.attrib.get("style", ""), path.attrib["d"]) for path in parse(chart).iter("path")]
    return [
        (style, [float(number) for number in re.findall(r"[\d.]+", d)])
        for style, d in paths
        if "stroke: var(--" in style and "--edge" not in style and "C" not in d
    ]


def texts(chart: Chart) -> list[str]:
    return [text.text or "" for text in parse(chart).iter("text")]


def test_a_chart_in_a_file_has_its_title_and_legend() -> None:
    drawn = [Line("a & b", [1, 2], [0.5, 1]), Line("limit", [1, 1], [0, 1], is_reference=True)]
    text = draw_file("Scores", drawn, xlabel="images")
    root = ElementTree.fromstring(text)
    words = [word.text for word in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Scores", "a & b", "limit", "images"} <= {*words} and "var(--" not in text
    assert text == draw_file("Scores", drawn, xlabel="images")


def test_points_lie_where_the_axes_say() -> None:
    """Axes from (52, 210), bottom left, to (388, 12.5), top right, of 400 x 250."""
    chart = draw(
        "Unit",
        [Line("a & b", [0, 0.5, 1], [0, 0.5, 1]), Line("c", [1], [0])],
        xlabel="p < 1",
        is_unit_square=True,
    )
    assert dots(chart) == [
        ("--s0", 52, 210, "a & b: 0 at 0"),
        ("--s0", 220, 111.25, "a & b: 0.5 at 0.5"),
        ("--s0", 388, 12.5, "a & b: 1 at 1"),
        ("--s1", 388, 210, "c: 0 at 1"),
    ]
    ticks = ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert texts(chart) == [*ticks, "p < 1", *ticks]
    assert chart.legend == [("s0", "a & b"), ("s1", "c")]
    assert parse(chart).attrib["viewBox"] == "0 0 400 250"
    assert "<g clip-path" not in chart.svg  # dots on the axes are whole


def test_axes_fit_the_lines_and_epochs_are_integers() -> None:
    chart = draw("Fit", [Line("a", [1, 2, 4], [10, 20, 30])], xlabel="epoch")
    assert [dot[1] for dot in dots(chart)] == [52, 164, 388]
    assert texts(chart)[:4] == ["1", "2", "3", "4"]
    heights = [dot[2] for dot in dots(chart)]
    assert heights == sorted(heights, reverse=True) and 12.5 < heights[2] < heights[0] < 210


def test_a_long_line_has_no_dots_and_a_reference_is_dashed() -> None:
    many = [k / 60 for k in range(61)]
    chart = draw(
        "Long",
        [
            Line("short", many[:60], many[:60]),
            Line("long", many, many),
            Line("reference", [0, 1], [0, 1], is_reference=True),
        ],
        xlabel="x",
    )
    assert {dot[3].split(":")[0] for dot in dots(chart)} == {"short"} and len(dots(chart)) == 60
    (_, _), (second, _), (third, points) = lines(chart)
    assert "--s1" in second and "dasharray" not in second and "stroke-width: 2" in second
    assert "--faint" in third and "dasharray" in third and "stroke-width" not in third  # 1
    assert points == [52, 201.022727, 388, 21.477273]
    assert chart.legend[2] == ("reference", "reference")


def test_points_that_are_not_finite_and_lines_without_points_are_left_out() -> None:
    nan, inf = float("nan"), float("inf")
    chart = draw(
        "Gaps", [Line("none", [1], [nan]), Line("a", [1, nan, 3], [1, 1, inf])], xlabel="x"
    )
    assert [dot[3] for dot in dots(chart)] == ["a: 1 at 1"]
    assert chart.legend == [("s0", "a")]


def test_history_shows_the_columns_that_have_values() -> None:
    loss, rate = history_charts(ROWS)
    assert (loss.title, rate.title) == ("Loss", "Learning rate at the epoch's end")
    assert loss.legend == [("s0", "loss"), ("s1", "dice loss")]
    assert [dot[3] for dot in dots(loss)] == [
        "loss: 1.5 at 1", "loss: 1 at 2", "loss: 0.5 at 3", "dice loss: 0.5 at 1", "dice loss: 0 at 3",
    ]  # fmt: skip
    assert len(dots(rate)) == 2  # the third row's cell was cut by a crash
    assert "epoch" in texts(loss)
    assert history_charts([]) == []


def test_the_chart_of_validation_has_the_scores_that_predictions_have() -> None:
    """Those at the threshold, and of objects the score that chooses; an epoch without a score has no dot."""
    row = {
        "epoch": "1",
        "validation_dice": "0.2",
        "validation_iou": "0.1",
        "validation_score": "0.8",
    }
    rows = [row | {"threshold": "0.3"}, {"epoch": "2"}]
    (chart,) = history_charts(rows)
    assert [dot[3] for dot in dots(chart)] == ["Dice: 0.8 at 1", "IoU: 0.66667 at 1"]
    (chart,) = history_charts([row], chosen_by="mean AP")
    assert [name for _, name in chart.legend] == ["mean AP", "Dice", "IoU"]


def test_a_range_test_is_shown_until_its_loss_has_doubled() -> None:
    steps = (("1e-4", "1"), ("1e-3", "1.9"), ("1e-2", "2"), ("0", "1"))
    (chart,) = history_charts([], [{"learning_rate": r, "loss": loss} for r, loss in steps])
    assert chart.title == "Range test" and "learning rate, as a power of ten" in texts(chart)
    shown = ("1 at -4", "1.9 at -3", "1 at -9")
    assert [dot[3] for dot in dots(chart)] == [f"loss of a step: {point}" for point in shown]


def test_probabilities_of_two_classes() -> None:
    thresholds, calibration = probability_charts(example_evaluation())
    names = ["Dice", "IoU", "precision", "recall", "scored at 0.250"]
    assert [name for _, name in thresholds.legend] == names
    assert thresholds.title == "Scores by threshold"
    (_, dice), *_, (_, mark) = lines(thresholds)
    assert len(lines(thresholds)) == 5
    assert mark[::2] == [136, 136] and mark[1::2] == [210, 12.5]  # 52 + 336 / 4
    assert dice[0] == pytest.approx(52 + 336 * 4 / 1024)
    # the line starts at Dice 2 * 4 / (4 + 2 + 4), with both background pixels at 1/4
    assert dice[1] == pytest.approx(210 - 197.5 * 0.8)
    assert [dot[3] for dot in dots(calibration)][1] == "share that came true: 1 at 0.12549"
    assert len(dots(calibration)) == 4 and calibration.legend[1] == ("reference", "perfect")
    assert lines(calibration)[1][1] == [52, 210, 388, 12.5]
    assert "foreground's probability" in texts(calibration)
    half, _ = probability_charts(example_evaluation(threshold=None))
    assert half.legend[-1] == ("reference", "scored at 0.500")


def test_probabilities_of_more_classes() -> None:
    (calibration,) = probability_charts(example_evaluation(Labels((0, 1, 2))))
    assert calibration.title == "Calibration"
    assert "winning class's probability" in texts(calibration)


def test_svg_is_the_same_on_every_run_and_fits_into_a_page() -> None:
    chart = history_charts(ROWS)[0]
    assert chart == history_charts(ROWS)[0]
    assert (
        chart.svg.startswith("<svg ") and "http" not in chart.svg and "<metadata" not in chart.svg
    )
    assert not re.search(r"#[0-9a-f]{6}\b(?!\d)", re.sub(r"#m\w+|#p\w+", "", chart.svg))
    assert "<style" not in chart.svg  # the page has one for all
    assert "font-family" not in chart.svg and "var(--faint)" in chart.svg
    ids = [set(re.findall(r' id="(\w+)"', each.svg)) for each in history_charts(ROWS)]
    assert all(ids) and not ids[0] & ids[1]
    assert set(re.findall(r"#(\w+)", chart.svg)) <= ids[0]


def test_the_loss_chart_has_the_terms_of_the_run() -> None:
    rows = [
        {"epoch": str(k), "loss": "1", "tversky_loss": "0.5", "focal_loss": "0.1"} for k in (1, 2)
    ]
    names = ["loss", "tversky loss", "focal loss"]
    assert [name for _, name in history_charts(rows)[0].legend] == names
