"""How well scores of validation choose the epoch: rank correlation with the score on held-out images.

    python -m benchmarks.choice NAME=FOLDER [NAME=FOLDER ...] [--seeds 3] [-- FLAGS OF train.py]

FOLDER has imgs/, and masks/ or objects/ (then it is trained with --instances). For each seed, groups are dealt
out: a third is held out, of the rest a fourth validates. All epochs are kept and scored on both.
"""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.timing import new_parser, print_table
from unet_ddp.data.groups import group_names
from unet_ddp.data.matching import Report, find_pairs
from unet_ddp.data.pairs import Pair, collect
from unet_ddp.distributed.world import World
from unet_ddp.evaluation.dataset import EvaluationDataset
from unet_ddp.evaluation.results import Evaluation, ImageRecord
from unet_ddp.evaluation.scoring import score_pairs
from unet_ddp.metrics.scores import Scores
from unet_ddp.prediction.predictor import Predictor

Epoch = dict[str, float]


def split_in_three(pairs: list[Pair], seed: int) -> dict[str, list[Pair]]:
    """Return pairs to train on, to choose by and to hold out; groups stay whole where there are enough."""
    groups = group_names(collect(pairs), None)
    if len(set(groups.values())) < 6:  # too few for three sides
        groups = {name: name for name in groups}
    names = sorted(
        set(groups.values()), key=lambda g: hashlib.sha256(f"{seed}:{g}".encode()).digest()
    )
    third, sixth = round(len(names) / 3), max(1, round(len(names) / 6))
    side_of = dict.fromkeys(names, "training")
    side_of |= dict.fromkeys(names[:third], "held out")
    side_of |= dict.fromkeys(names[third : third + sixth], "validation")
    sides: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        sides[side_of[groups[pair.name]]].append(pair)
    return sides


def mean_dice(records: list[ImageRecord], name_of: Callable[[str], str]) -> float:
    """Return the mean over groups of images of the Dice of each group's counts."""
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros_like(records[0].confusion))
    for record in records:
        sums[name_of(record.name)] = sums[name_of(record.name)] + record.confusion
    found = [Scores.from_confusion(confusion).dice for confusion in sums.values()]
    return float(np.nanmean(found)) if not np.isnan(found).all() else math.nan


def candidates(evaluation: Evaluation, groups: dict[str, str]) -> Epoch:
    """Return the scores that could choose the epoch."""
    scores = {
        "pooled": evaluation.scores.dice,
        "mean over images": mean_dice(evaluation.records, str),
        "mean over groups": mean_dice(evaluation.records, groups.__getitem__),
    }
    if evaluation.tally is not None:
        scores |= {
            "AP at IoU 0.5": evaluation.tally.score,
            "mean AP": evaluation.tally.quality,
            "panoptic quality": evaluation.tally.scores["panoptic_quality"],
        }
    return scores


def score_epochs(folder: Path, sides: dict[str, list[Pair]]) -> list[tuple[Epoch, Epoch]]:
    """Return the candidates and the held-out scores of each epoch."""
    groups = group_names(collect(sides["validation"] + sides["held out"]), None)
    epochs = []
    for path in sorted(folder.glob("epoch_*.pt")):
        predictor = Predictor.from_checkpoint(path, device="cpu", fold=False)

        def score(side: str, threshold: float | None, predictor: Predictor = predictor) -> Epoch:
            dataset = EvaluationDataset(collect(sides[side]), predictor, full_size=False)
            found = score_pairs(predictor, dataset, World(), threshold=threshold, workers=0)
            return candidates(found, groups)

        own = predictor.threshold
        chosen_by = score("validation", None)
        if own is not None:
            at = score("validation", own)
            chosen_by |= {f"{name}, own threshold": value for name, value in at.items()}
        epochs.append((chosen_by, score("held out", own)))
    return epochs


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Return Spearman's: the correlation of the ranks, of equal values their mean rank."""
    from scipy.stats import rankdata

    ranks = [rankdata(np.nan_to_num(values, nan=-1.0)) for values in (one, other)]
    if any(np.ptp(each) == 0 for each in ranks):
        return 0.0  # it tells nothing apart
    return float(np.corrcoef(*ranks)[0, 1])


def run(folder: Path, flags: list[str], seed: int, work: Path) -> list[tuple[Epoch, Epoch]]:
    """Train once and return the scores of its epochs."""
    objects = (folder / "objects").is_dir()
    pairs = list(
        find_pairs(folder / "imgs", folder / ("objects" if objects else "masks"), Report())
    )
    sides = split_in_three(pairs, seed)
    rows = [
        f'"{pair.image.absolute()}","{pair.mask.absolute()}",{side}'
        for side in ("training", "validation")
        for pair in sides[side]
    ]
    work.mkdir(parents=True)
    (work / "list.csv").write_text("\n".join(["image,mask,split", *rows]) + "\n", encoding="utf-8")
    words = ["--list", str(work / "list.csv"), "--checkpoints", str(work / "run"), *flags]
    words += ["--save-every", "1", "--seed", str(seed), *(["--instances"] if objects else [])]
    subprocess.run([sys.executable, "-m", "unet_ddp", "train", *words], check=True)
    return score_epochs(work / "run", sides)


def describe(runs: list[list[tuple[Epoch, Epoch]]], target: str) -> list[tuple[str, str, str]]:
    """Return a row per candidate: the correlation in each run, and what its choice gives away.

    Of equal epochs the later is chosen.
    """
    rows = []
    for name in runs[0][0][0]:
        correlations, lost = [], []
        for epochs in runs:
            values = [by.get(name, math.nan) for by, _ in epochs]
            held_out = [scores[target] for _, scores in epochs]
            correlations.append(rank_correlation(values, held_out))
            best = max(range(len(values)), key=lambda k: (np.nan_to_num(values[k], nan=-1.0), k))
            lost.append(max(held_out) - held_out[best])
        each = ", ".join(f"{value:.2f}" for value in correlations)
        rows.append((name, f"{fmean(correlations):.2f} ({each})", f"{fmean(lost):.4f}"))
    return rows


def main(argv: list[str] | None = None) -> int:
    """Print a table for each set."""
    parser = new_parser(__doc__)
    parser.add_argument("sets", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--seeds", type=int, default=3)
    words = sys.argv[1:] if argv is None else argv
    end = words.index("--") if "--" in words else len(words)
    options, flags = parser.parse_args(words[:end]), words[end + 1 :]
    for named in options.sets:
        name, _, folder = named.partition("=")
        runs = []
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as work:
                runs.append(run(Path(folder), flags, seed, Path(work) / "work"))
        is_objects = "mean AP" in runs[0][0][1]
        for target in ["mean AP"] if is_objects else ["mean over images", "pooled"]:
            print(f"\n{name}, held-out score: {target}")
            print_table(("chosen by", "Spearman: mean (each)", "lost"), describe(runs, target))
    return 0


if __name__ == "__main__":
    sys.exit(main())
