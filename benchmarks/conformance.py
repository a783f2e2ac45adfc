"""Compare scores, objects, and exports with what other programs make of the same input.

    python -m pip install scikit-learn torchmetrics
    python -m benchmarks.conformance

It prints a table of docs/systems.md. A library that is not installed is named, and its rows are left out.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.timing import new_parser, print_table
from tests.prediction.models import write_model
from unet_ddp.__main__ import main as run_command
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.extras.objects.scores import OVERLAPS, count_objects
from unet_ddp.metrics.counts import Counts
from unet_ddp.metrics.curves import Calibration
from unet_ddp.metrics.scores import Scores

Row = tuple[str, str, str]  # what, by which program, the result
Pair = tuple[Any, Any]  # our value or values, and theirs
NETWORKS = (("unet", None), ("fpn", "resnet18"), ("deeplabv3plus", "mobilenet_v2"))


def differ(pairs: Sequence[Pair], cases: str) -> str:
    """Return the largest difference; our nan, of a class that is not there, is their 0."""
    differences = [np.nan_to_num(ours) - np.nan_to_num(theirs) for ours, theirs in pairs]
    return f"{cases}: largest difference {max(np.abs(each).max() for each in differences):.1e}"


def score_pixels() -> Iterator[Row]:
    """Yield the differences of scores on random masks with ignored pixels and absent classes."""
    from sklearn import metrics
    from torchmetrics.functional import classification

    scores, errors = list[Pair](), list[Pair]()
    for seed, classes in product(range(10), (2, 5, 9)):
        rng = np.random.default_rng([seed, classes])
        masks = torch.from_numpy(rng.integers(0, max(2, classes - 1), (3, 40, 30)).astype(np.uint8))
        logits = torch.from_numpy(rng.normal(0, 2, (3, classes, 40, 30)).astype(np.float32))
        if seed % 2 and classes > 2:
            logits[:, -1] = -99  # else the class that truth lacks is predicted
        masks[0, :9] = IGNORE_ID
        counts, known = Counts.of(logits, masks), masks != IGNORE_ID
        ours = Scores.from_confusion(counts.confusion)
        how = {"labels": range(classes), "average": None, "zero_division": 0}
        flat = masks[known], logits.argmax(1)[known]
        scores += [
            (ours.dice_per_class, metrics.f1_score(*flat, **how)),
            (ours.iou_per_class, metrics.jaccard_score(*flat, **how)),
            (ours.precision_per_class, metrics.precision_score(*flat, **how)),
            (ours.recall_per_class, metrics.recall_score(*flat, **how)),
        ]
        task, shares = "multiclass", logits.softmax(1)
        if classes == 2:
            task, shares = "binary", shares[:, 1]
        told = {"n_bins": 16, "num_classes": classes, "ignore_index": IGNORE_ID}
        error = classification.calibration_error(shares, masks.long(), task, **told)
        errors.append((Calibration.from_histogram(counts.histogram.numpy()).error, error))
    yield "Dice, IoU, precision, recall", "scikit-learn", differ(scores, "30 batches")
    yield "calibration error, from 1,024 bins", "torchmetrics", differ(errors, "30 batches")


def draw_objects(seed: int) -> list[NDArray[np.int64]]:
    """Return true and predicted numbered objects (80, 90): blobs, and the same ones with noise."""
    from scipy import ndimage

    rng = np.random.default_rng(seed)
    field, other = (ndimage.gaussian_filter(rng.normal(0, 1, (80, 90)), 3) for _ in range(2))
    return [ndimage.label(each > 0.05)[0].astype(np.int64) for each in (field, field + other / 4)]


def match_by_coco(truth: NDArray[np.int64], found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of objects that match at each IoU, by COCO's own evaluation."""
    from pycocotools.cocoeval import COCOeval
    from pycocotools.mask import encode, iou

    encoded = lambda side, k: encode(np.asfortranarray(side == k, np.uint8))  # noqa: E731
    masks = [[encoded(side, k) for k in range(1, side.max() + 1)] for side in (found, truth)]
    about = {"area": 1, "ignore": 0, "iscrowd": 0, "score": 1}
    matching = COCOeval(iouType="segm")
    for side, objects in zip((matching._dts, matching._gts), masks, strict=True):
        side[1, 1] = [{"id": k, **about} for k, _ in enumerate(objects, start=1)]
    matching.params.iouThrs = np.array(OVERLAPS) + 1e-9  # COCO matches at equality, too
    matching.ious[1, 1] = iou(*masks, [0] * len(masks[1]))
    return np.count_nonzero(matching.evaluateImg(1, 1, (0, 2), 1000)["dtMatches"], axis=1)


def score_objects() -> Iterator[Row]:
    """Yield the differences of panoptic quality, and of the objects that match at each IoU."""
    from torchmetrics.functional.detection import panoptic_quality

    qualities, matched = list[Pair](), list[Pair]()
    for seed in range(20):
        truth, found = draw_objects(seed)
        ours = count_objects(found, truth)
        pairs = [torch.from_numpy(np.stack([each > 0, each], -1))[None] for each in (found, truth)]
        theirs = panoptic_quality(*pairs, things={1}, stuffs={0}, return_per_class=True)
        qualities.append((ours.panoptic_quality, theirs[0, 0]))
        matched.append((ours.matched, match_by_coco(truth, found)))
    yield "panoptic quality", "torchmetrics", differ(qualities, "20 images")
    yield "matches, of which AP is made", "pycocotools", differ(matched, "20 images, 10 IoUs")


def export_networks() -> Iterator[Row]:
    """Yield the differences of exports in ONNX Runtime, as the command measures them; onnx checks each file."""
    import onnx

    for model, encoder in NETWORKS:
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
            files = [f"{folder}/a.pt", f"{folder}/a.onnx"]
            write_model(Path(files[0]), Labels((0, 1)), model=model, encoder=encoder)
            assert run_command(["export", *files]) == 0
            onnx.checker.check_model(files[1], full_check=True)
        line = next(line for line in said.getvalue().splitlines() if "differ by" in line)
        name = " with ".join(filter(None, (model, encoder)))
        yield f"export of {name}", "onnx.checker, ONNX Runtime", f"valid; {line.strip()}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    new_parser(__doc__).parse_args(argv)
    rows = list[Row]()
    for check in (score_pixels, score_objects, export_networks):
        try:
            rows += check()
        except ImportError as error:
            print(f"left out: {error}", file=sys.stderr)
    print_table(("what", "compared with", "result"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
