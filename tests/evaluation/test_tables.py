"""The text of the result files and of the terminal's table."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from tests.evaluation.examples import example_evaluation
from unet_ddp.checkpoints.run_files import EVALUATION_FILES
from unet_ddp.data.labels import Labels
from unet_ddp.evaluation.boundary import BoundaryCounts
from unet_ddp.evaluation.results import ImageRecord
from unet_ddp.evaluation.tables import headline, result_files, show, terminal_table
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.objects.scores import ObjectCounts


def test_scores_json_has_all_scores_of_the_set() -> None:
    text = result_files(example_evaluation(), {"model": "ä.pt"}, {})["scores.json"]
    assert text.startswith('{\n  "model": "ä.pt",\n  "images": 2,\n') and text.endswith("}\n")
    found = json.loads(text)
    classes = found.pop("classes")
    assert found == {
        "model": "ä.pt",
        "images": 2,
        "size": "the images' own",
        "threshold": 0.25,
        "boundary_tolerance": "0.75 % of the diagonal",
        "dice": 6 / 9,
        "iou": 3 / 6,
        "pixel_accuracy": 13 / 16,
        # |accuracy - mean probability|, weighted by pixels; probabilities are centres of bins
        "calibration_error": sum(
            n * abs(accuracy - (k + 0.5) / 1024)
            for n, accuracy, k in ((10, 0, 0), (1, 1, 128), (2, 0, 256), (3, 1, 768))
        )
        / 16,
        "dice_as_trained": 4 / 5,
        "dice_at_0.5": 6 / 7,
        "best_threshold": 0.5,
        "dice_at_best_threshold": 6 / 7,
    }
    assert classes[0] == {
        "name": "0", "dice": 20 / 23, "iou": 10 / 13, "precision": 10 / 11, "recall": 10 / 12,
        "boundary_f": None, "pixels": 12, "predicted_pixels": 11,
    }  # fmt: skip
    assert (classes[1]["pixels"], classes[1]["predicted_pixels"]) == (4, 5)


def test_scores_json_says_how_it_was_scored() -> None:
    evaluation = replace(example_evaluation(threshold=None), tolerance=3.0, full_size=False)
    found = json.loads(result_files(evaluation, {}, {})["scores.json"])
    assert found["size"] == "the network's scale"
    assert (found["threshold"], found["boundary_tolerance"]) == (None, 3.0)


def test_per_image_csv_has_a_row_per_image_and_empty_cells_for_nan() -> None:
    heading, first, second, end = result_files(example_evaluation(), {}, {})["per_image.csv"].split(
        "\n"
    )
    scores = ("dice", "iou", "precision", "recall", "boundary_f")
    classes = [f"{score}_{name}" for name in ("0", "255") for score in scores]
    counts = [
        f"{n}_{name}" for name in ("0", "255") for n in ("hits", "pixels", "predicted_pixels")
    ]
    assert heading.split(",") == ["image", "dice", "iou", *classes, *counts]
    cells = first.split(",")
    assert cells[0] == "a" and cells[7] == ""
    assert cells[13:] == ["6", "8", "7", "3", "4", "5"]
    numbers = [float(cell) for cell in cells[1:7] + cells[8:13]]
    background = [12 / 15, 6 / 9, 6 / 7, 6 / 8]
    assert numbers == [6 / 9, 3 / 6, *background, 6 / 9, 3 / 6, 3 / 5, 3 / 4, 2 / 3]
    assert second == "b,,,1.0,1.0,1.0,1.0,,,,,,,4,4,4,0,0,0"
    assert end == ""


def test_the_other_tables() -> None:
    evaluation = example_evaluation(Labels((0, 255), names=("road, wet", "car")))
    files = result_files(evaluation, {}, {})
    assert files["confusion.csv"] == (
        'truth \\ prediction,"road, wet",car\n"road, wet",10,2\ncar,1,3\n'
    )
    bins = files["calibration.csv"].splitlines()
    assert bins[0] == "from,to,pixels,confidence,accuracy"
    assert bins[1] == f"0.0,0.0625,10,{0.5 / 1024},0.0"
    assert bins[2] == "0.0625,0.125,0,,"
    curve = files["threshold.csv"].splitlines()
    assert curve[0] == "threshold,dice,iou,precision,recall" and len(curve) == 1024
    # at 1/4 the 2 background pixels there count as foreground too, and at 257/1024 no more
    assert curve[256] == f"0.25,{6 / 9},{3 / 6},{3 / 5},{3 / 4}"
    assert curve[257] == f"{257 / 1024},{6 / 7},{3 / 4},1.0,0.75"
    assert {*files, "report.html"} == set(EVALUATION_FILES)


def test_more_classes_have_no_threshold() -> None:
    records = [ImageRecord("a", 0, np.diag([1, 2, 3]), [BoundaryCounts()] * 3)]
    evaluation = example_evaluation(Labels((0, 1, 2)), threshold=None)
    evaluation = replace(evaluation, records=records, as_trained=np.diag([1, 2, 3]))
    files = result_files(evaluation, {}, {})
    assert "threshold.csv" not in files and "best_threshold" not in json.loads(files["scores.json"])
    assert [name for name, _ in headline(evaluation)] == ["Dice", "IoU", "calibration error"]
    text = "\n".join(terminal_table(evaluation))
    assert "best threshold" not in text and "(mean of the classes that occur)" in text


def test_each_source_has_its_scores() -> None:
    """`a` of the example is from the street, `b` of the night, as is an image without foreground hits."""
    street, night = example_evaluation().records
    miss = ImageRecord("c", 2, np.array([[2, 0], [2, 0]]), [BoundaryCounts()] * 2)
    records = [replace(street, source="street"), replace(night, source="night"), miss]
    evaluation = replace(example_evaluation(), records=records)
    assert terminal_table(evaluation)[-5:-2] == [
        f"Dice {6 / 11:.4f}, IoU {3 / 8:.4f} (of the foreground)",
        "  1 image of night: Dice -, IoU -",
        "  1 image of street: Dice 0.6667, IoU 0.5000",
    ]
    evaluation = replace(evaluation, records=[*records[:2], replace(miss, source="night")])
    files = result_files(evaluation, {}, {})
    found = json.loads(files["scores.json"])["sources"]
    assert found == {
        "night": {"images": 2, "dice": 0, "iou": 0, "dice_by_class": {"0": 12 / 14, "255": 0}},
        "street": {
            "images": 1,
            "dice": 6 / 9,
            "iou": 3 / 6,
            "dice_by_class": {"0": 12 / 15, "255": 6 / 9},
        },
    }
    rows = [row.split(",")[:3] for row in files["per_image.csv"].splitlines()]
    assert rows == [
        ["image", "source", "dice"], ["a", "street", f"{6 / 9}"], ["b", "night", ""], ["c", "night", "0.0"],
    ]  # fmt: skip
    assert ("Dice of street", "0.6667") in headline(evaluation)
    many = replace(evaluation, records=[replace(street, source=f"{k:02}") for k in range(23)])
    assert terminal_table(many)[-4:-2] == [
        "  1 image of 19: Dice 0.6667, IoU 0.5000", "  3 more sources, in scores.json",
    ]  # fmt: skip
    assert [name for name, _ in headline(many) if " of " in name][-1] == "Dice of 19"


def test_a_set_of_ignored_pixels_has_no_accuracy() -> None:
    records = [ImageRecord("a", 0, np.zeros((2, 2), np.int64), [BoundaryCounts()] * 2)]
    evaluation = replace(example_evaluation(), records=records)
    found = json.loads(result_files(evaluation, {}, {})["scores.json"])
    assert found["pixel_accuracy"] is None and found["dice"] is None
    assert "Dice -, IoU - (of the foreground)" in terminal_table(evaluation)


def test_the_terminal_shows_classes_whole_set_and_worst_images() -> None:
    table = "\n".join(terminal_table(example_evaluation(Labels((0, 255), names=("sky", "a car")))))
    assert table == (
        "\n"
        "class   Dice        IoU         precision   recall      boundary F\n"
        "sky     0.8696      0.7692      0.9091      0.8333      -\n"
        "a car   0.6667      0.5000      0.6000      0.7500      0.6667\n"
        "\n"
        "Dice 0.6667, IoU 0.5000 (of the foreground)\n"
        "expected calibration error 0.1331; best threshold for these images 0.500 (Dice 0.8571; "
        "0.8571 at 0.5)\n"
        "worst: a 0.6667, b -"
    )


def test_objects_are_scored_at_half_an_overlap_over_all_and_by_class() -> None:
    """Of both classes 3 of 4 found of 5 true ones at 0.5: 3/6; 2 of them at 0.55 to 0.95: 2/7."""
    car = ObjectCounts(4, 3, np.array([2] + [1] * 9), 1.5, split=1, merged=0)
    tree = ObjectCounts(1, 1, np.array([1] * 10), 0.75, split=0, merged=1)
    matrix, labels = np.diag([1, 2, 3, 0]), ObjectLabels.of(("car", "tree"))
    records = [ImageRecord("a", 0, matrix, [BoundaryCounts()] * 4, [car, tree])]
    evaluation = replace(example_evaluation(labels), records=records, as_trained=matrix)
    assert terminal_table(evaluation)[-6:-3] == [
        f"objects: AP 0.5000 at IoU 0.5, {(3 / 6 + 9 * 2 / 7) / 10:.4f} over 0.5 to 0.95; panoptic "
        f"quality {2 * 2.25 / 9:.4f}; 5 true, 4 predicted, 1 split, 1 merged",
        "  car: AP 0.4000 at IoU 0.5",
        "  tree: AP 1.0000 at IoU 0.5",
    ]
    assert headline(evaluation)[:2] == [("AP at IoU 0.5", "0.5000"), ("panoptic quality", "0.5000")]


def test_headline_and_digits() -> None:
    assert headline(example_evaluation()) == [
        ("Dice", "0.6667"),
        ("IoU", "0.5000"),
        ("calibration error", "0.1331"),
        ("best threshold", "0.500 (Dice 0.8571)"),
    ]
    assert (show(0.99996), show(float("nan"))) == ("1.0000", "-")
