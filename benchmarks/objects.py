"""Objects found, merged and split with the border class and without it, after equal trainings.

    python -m benchmarks.objects [--images DIR --masks DIR] [--folder DIR] [train.py's flags]

Without --images, on drawn ellipses that touch. "Without" is the same training with --mask-threshold 0: its
objects are the connected parts of the foreground at the best threshold, or its probabilities are
separated by the same watershed, whose parameters are found on validation too. All are scored on the
validation images of the run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from benchmarks.timing import new_parser, print_table
from unet_ddp.checkpoints.weights import read_model
from unet_ddp.data.readers.read import read_mask
from unet_ddp.evaluation.validation_split import rebuild
from unet_ddp.extras.objects.labels import EXTENTS, SEEDS, SMOOTHINGS, ObjectLabels
from unet_ddp.extras.objects.scores import ObjectCounts, count_objects
from unet_ddp.extras.objects.separation import separate, to_shares
from unet_ddp.prediction.predictor import Predictor


def draw_ellipses(folder: Path, *, count: int, side: int, seed: int = 0) -> None:
    """Write images of ellipses in clumps, and masks in which each has a number, with gaps."""
    for name in ("imgs", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        numbers = np.zeros((side, side), np.uint16)
        shades = np.zeros((side, side), np.float32)
        placed: list[tuple[float, float]] = []
        for number in 1 + 3 * np.arange(side * side // 350):
            x, y = rng.uniform(0, side, 2)
            if placed and rng.random() < 0.7:  # next to an earlier one
                angle, (x, y) = rng.uniform(0, 2 * np.pi), placed[rng.integers(len(placed))]
                x, y = x + 13 * np.cos(angle), y + 13 * np.sin(angle)
            shape = Image.new("1", (side, side))
            across, down = rng.uniform(5, 9, 2)
            ImageDraw.Draw(shape).ellipse((x - across, y - down, x + across, y + down), fill=1)
            inside = np.asarray(shape)
            if (inside & (numbers == 0)).sum() < 0.75 * max(1, inside.sum()):
                continue
            placed.append((x, y))
            shades[inside & (numbers == 0)] = rng.uniform(90, 200)
            numbers[inside & (numbers == 0)] = number
        noisy = shades + rng.normal(30, 12, shades.shape)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"imgs/{index:03}.png")
        Image.fromarray(numbers).save(folder / f"masks/{index:03}.png")


Pairs = list[tuple[np.ndarray, np.ndarray]]


def predict(best: Path) -> Pairs:
    """The probabilities and true numbers of the validation images of the run that wrote `best`."""
    predictor, model = Predictor.from_checkpoint(best, device="cpu"), read_model(best)
    assert model.labels is not None
    pairs = rebuild(model.run, best, model.labels).split.validation
    return [(predictor(pair.image).probabilities, read_mask(pair.mask)) for pair in pairs]


def score(pairs: Pairs, separation: tuple[float, float], smoothing: float = 0.0) -> ObjectCounts:
    """Count the objects; of two classes, the foreground is body and extent alike."""
    counts = []
    for probabilities, truth in pairs:
        shares = np.rint(255 * probabilities[[1, 1]]).astype(np.uint8)
        body, extent = to_shares(probabilities) if len(probabilities) == 3 else shares
        found = separate(body, extent, separation, smoothing=smoothing)
        counts.append(count_objects(found, truth))
    return ObjectCounts.total(counts)


def main(argv: list[str] | None = None) -> int:
    """Train twice and print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--masks", type=Path)
    parser.add_argument("--folder", type=Path, help="for the runs (default: a temporary one)")
    parser.add_argument("--count", type=int, default=60, help="drawn images")
    parser.add_argument("--side", type=int, default=128, help="of a drawn image, in pixels")
    options, flags = parser.parse_known_args(argv)
    torch.set_num_threads(1)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="unet_ddp-objects-"))
    images, masks = options.images, options.masks
    if images is None:
        draw_ellipses(folder, count=options.count, side=options.side)
        images, masks = folder / "imgs", folder / "masks"
    for name, kind in (("instances", ["--instances"]), ("binary", ["--mask-threshold", "0"])):
        run = ["train.py", "--images", images, "--masks", masks, *kind, *flags]
        run += ["--checkpoints", folder, "--exp-name", name, "--overwrite"]
        subprocess.run([sys.executable, *map(str, run)], check=True)
    best = {name: folder / name / "best.pt" for name in ("instances", "binary")}
    labels = read_model(best["instances"]).labels
    assert isinstance(labels, ObjectLabels)
    pairs = predict(best["instances"])
    counts = score(pairs, labels.separation, labels.smoothing)
    found = {f"with border, {labels.separation}, smoothed by {labels.smoothing:g}": counts}
    pairs = predict(best["binary"])
    tried = {
        "without, connected at": [(at, at) for at in EXTENTS],
        "without, watershed": [*product(SEEDS, EXTENTS)],
    }
    for name, separations in tried.items():
        counted = [(each, by, score(pairs, each, by)) for each in separations for by in SMOOTHINGS]
        chosen, smoothing, counts = max(counted, key=lambda row: row[-1].quality)
        found[f"{name} {chosen}, smoothed by {smoothing:g}"] = counts
    rows = []
    for name, c in found.items():
        shares = c.precisions[0], c.quality, c.panoptic_quality
        numbers = c.truth, c.predicted, c.merged, c.split
        rows.append((name, *(f"{share:.3f}" for share in shares), *map(str, numbers)))
    print_table(("objects", "AP50", "mean AP", "PQ", "true", "predicted", "merged", "split"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
