"""Images labelled by --rank against images drawn at random: equal trainings.

    OMP_NUM_THREADS=1 python -m benchmarks.labelling --data DIR [--folder DIR] [train.py's flags]

DIR has imgs/ and masks/. For each seed, 20 images are held out, and a first network is trained on 20
others. Of the rest, 20 more are labelled, from the top of its `predict.py --rank` or at random. All take about as many steps. None has validation images: the last weights are scored.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.timing import new_parser, print_table

PART = 20  # images held out, labelled first, and labelled then
BATCH = 8
ARMS = ("20 at random", "40, 20 of them by rank", "40 at random")
PAIRS = (("rank - random", 1, 2), ("40 - 20 at random", 2, 0))


def run(*words: object) -> None:
    """Run a program as a user does."""
    subprocess.run([sys.executable, *map(str, words)], check=True)


def score_arms(data: Path, folder: Path, seed: int, steps: int, flags: list[str]) -> list[float]:
    """Return the Dice of each arm on the images held out."""
    masks = {mask.stem: mask for mask in (data / "masks").iterdir()}
    images = sorted(image for image in (data / "imgs").iterdir() if image.stem in masks)
    order = [images[k] for k in np.random.default_rng(seed).permutation(len(images))]
    first, rest = order[PART : 2 * PART], order[2 * PART :]
    for file in (*order[:PART], *(masks[image.stem] for image in order[:PART])):
        (folder / file.parent.name).mkdir(parents=True, exist_ok=True)
        (folder / file.parent.name / file.name).symlink_to(file)

    def train(name: str, count: int, *words: object) -> float:
        epochs = round(steps / (count // BATCH))
        words = (*words, "-v", 0, "-b", BATCH, "--epochs", epochs, "--seed", seed, *flags)
        run("train.py", *words, "--checkpoints", folder, "--exp-name", name)
        test = ("--images", folder / "imgs", "--masks", folder / "masks")
        run("-m", "unet_ddp", "evaluate", "-m", folder / name / "last.pt", *test)
        return float(json.loads((folder / name / "evaluation/scores.json").read_text())["dice"])

    def label(name: str, chosen: list[Path]) -> float:
        rows = "".join(f"{image},{masks[image.stem]}\n" for image in chosen)
        (folder / f"{name}.csv").write_text(f"image,mask\n{rows}")
        return train(name, len(chosen), "--binary", "--list", folder / f"{name}.csv")

    dice = [label("first", first)]
    words = ("-m", folder / "first/last.pt", "-o", folder / "first/masks")
    run("predict.py", *rest, *words, "--rank", folder / "next.csv")
    ranked = [Path(row.split(",")[0]) for row in (folder / "next.csv").read_text().splitlines()[1:]]
    return [*dice, label("rank", first + ranked[:PART]), label("random", first + rest[:PART])]


def main(argv: list[str] | None = None) -> int:
    """Print the Dice of each arm and seed, and the differences."""
    parser = new_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="for the runs (default: a temporary one)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400, help="of each training")
    options, flags = parser.parse_known_args(argv)
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="unet_ddp-labelling-"))).resolve()
    data, steps = options.data.resolve(), options.steps
    found = [score_arms(data, folder / str(k), k, steps, flags) for k in range(options.seeds)]
    arms = np.transpose(found)
    rows = [*zip(ARMS, arms, strict=True), *((name, arms[a] - arms[b]) for name, a, b in PAIRS)]
    head = ("Dice", *(f"seed {seed}" for seed in range(len(found))), "mean", "deviation", "above 0")
    wins = [""] * len(ARMS) + [str((row > 0).sum()) for _, row in rows[len(ARMS) :]]
    shown = [[f"{x:.4f}" for x in (*row, row.mean(), row.std(ddof=1))] for _, row in rows]
    print_table(head, [(rows[k][0], *shown[k], wins[k]) for k in range(len(rows))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
