"""The pictures of README and of the documentation: docs/demo.png, docs/speed.svg and docs/gains.svg.

    python -m benchmarks.pictures [--model checkpoints] [--folder docs]

demo.png has validation images of the built-in demo set: the image, its true mask, the predicted mask and the
difference. Without `--model`, the quick start of README trains the network first: about four minutes.
speed.svg has the seconds to Dice 0.97 from the table in docs/quality.md, gains.svg the scores from the table in
docs/how-to/better-masks.md. All read on light and dark pages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from benchmarks.timing import new_parser
from unet_ddp import Predictor
from unet_ddp.checkpoints.weights import best_of, read_model
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.read import read_mask
from unet_ddp.evaluation.validation_split import rebuild

ROOT = Path(__file__).parents[1]
TRAIN = (
    "--epochs",
    "5",
    "--scale",
    "0.5",
    "--width",
    "16",
    "--lr",
    "0.003",
)  # as README's quick start
COLUMNS = ("image", "true mask", "prediction", "difference")
SIDE, GAP, TEXT = 300, 12, 26  # pixels: width of a picture, space between two, height of a line
GREY = "#767d86"  # reads on white and on black
FALSE_ALARM, MISS, HIT = (213, 94, 0), (0, 114, 178), (235, 235, 235)  # Okabe and Ito's, and white
BAR = "#0072b2"

Rgb = NDArray[np.uint8]
"""(H, W, 3)."""


class Scene(NamedTuple):
    """A validation image with its class ids (H, W), 0 and 1."""

    photo: Rgb
    truth: NDArray[np.uint8]
    predicted: NDArray[np.uint8]

    @property
    def dice(self) -> float:
        """Dice of class 1; 1 if neither mask has it."""
        both = int((self.truth & self.predicted).sum())
        total = int(self.truth.sum()) + int(self.predicted.sum())
        return 2 * both / total if total else 1.0


# -- demo.png ------------------------------------------------------------------------------


def read_scenes(run: Path) -> list[Scene]:
    """Return the validation images of a run, with the masks that its best network predicts."""
    source = best_of(run)
    predictor, model = Predictor.from_checkpoint(source, device="cpu"), read_model(source)
    pairs = rebuild(model.run, source, predictor.labels).split.validation
    return [
        read_scene(predictor, pair.image, pair.mask)
        for pair in (pairs[k] for k in range(len(pairs)))
    ]


def read_scene(predictor: Predictor, image: Path, mask: Path) -> Scene:
    """Return an image with its true and its predicted mask."""
    truth = predictor.labels.to_ids(read_mask(mask), mask)
    return Scene(np.asarray(Image.open(image).convert("RGB")), truth, predictor(image).ids)


def choose(scenes: Sequence[Scene]) -> list[Scene]:
    """Return the scenes of the highest, the median and the lowest Dice."""
    ordered = sorted(scenes, key=lambda scene: -scene.dice)
    return [ordered[0], ordered[len(ordered) // 2], ordered[-1]]


def draw_difference(scene: Scene) -> Rgb:
    """Return the picture of hits, false alarms and misses on the darkened photo."""
    picture = (scene.photo.mean(axis=2, keepdims=True).repeat(3, axis=2) * 0.3).astype(np.uint8)
    picture[(scene.truth == 1) & (scene.predicted == 1)] = HIT
    picture[(scene.truth == 0) & (scene.predicted == 1)] = FALSE_ALARM
    picture[(scene.truth == 1) & (scene.predicted == 0)] = MISS
    return picture


def draw_scenes(scenes: Sequence[Scene], labels: Labels) -> Image.Image:
    """Return the table of pictures, with headings above and a legend below."""
    height = SIDE * scenes[0].photo.shape[0] // scenes[0].photo.shape[1]
    size = (4 * SIDE + 3 * GAP, 2 * (TEXT + GAP) + len(scenes) * (height + GAP))
    table = Image.new("RGBA", size)
    pen, font = ImageDraw.Draw(table), ImageFont.load_default(20)
    for column, heading in enumerate(COLUMNS):
        pen.text((column * (SIDE + GAP) + SIDE // 2, 0), heading, GREY, font, anchor="ma")
    for row, scene in enumerate(scenes):
        masks = [
            np.asarray(labels.to_image(ids).convert("RGB"))
            for ids in (scene.truth, scene.predicted)
        ]
        for column, pixels in enumerate([scene.photo, *masks, draw_difference(scene)]):
            picture = Image.fromarray(pixels).resize((SIDE, height), Image.Resampling.LANCZOS)
            at = column * (SIDE + GAP), TEXT + GAP + row * (height + GAP)
            table.paste(picture, at)
    left, top = 3 * (SIDE + GAP), size[1] - TEXT
    for name, colour in (("found", HIT), ("missed", MISS), ("false alarm", FALSE_ALARM)):
        pen.rectangle((left, top + 4, left + 14, top + 18), colour, outline=GREY)
        pen.text((left + 20, top + 11), name, GREY, ImageFont.load_default(16), anchor="lm")
        left += 30 + int(pen.textlength(name, ImageFont.load_default(16)))
    few = np.asarray(table) & np.array([0xFC, 0xFC, 0xFC, 0xFF], np.uint8)  # noise that no eye sees
    return Image.fromarray(few)


def train(folder: Path) -> Path:
    """Train as README's quick start does in a new folder, and return the run's."""
    command = [sys.executable, str(ROOT / "train.py"), *TRAIN]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "checkpoints"


# -- speed.svg -----------------------------------------------------------------------------


class Time(NamedTuple):
    """Seconds that a program needs, with their deviation over the runs."""

    mean: float
    deviation: float


def read_times(page: str) -> dict[str, Time]:
    """Return the seconds to Dice 0.97 of each program in the table of docs/quality.md."""
    number = r"([\d.]+) ± ([\d.]+)"
    rows = re.findall(rf"^\| `([\w./]+)`( now)? \| {number} \|[^|]*\| {number} \|", page, re.M)
    return {name: Time(float(mean), float(off)) for name, _, _, _, mean, off in rows}


def draw_times(times: dict[str, Time]) -> str:
    """Return a bar for each program as SVG, with its deviation as a line."""
    left, scale, step = 190, 8.0, 56  # pixels: begin of the bars, of a second, between two bars
    names = {"benchmarks/plain.py": "plain PyTorch loop", "train.py": "unet_ddp"}
    longest = max(time.mean + time.deviation for time in times.values())
    width, height = round(left + scale * longest + 90), step * len(times) + 64
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="17" fill="{GREY}">',
        "<title>Seconds to a validation Dice of 0.97; shorter is better</title>",
        f'<text x="{left}" y="22" font-weight="600">Seconds to Dice 0.97, shorter is better</text>',
    ]
    for k, (name, (mean, off)) in enumerate(times.items()):
        y, end = 40 + step * k, left + scale * mean
        low, high = end - scale * off, end + scale * off
        colour = BAR if name == "train.py" else "#b0b5ba"
        lines += [
            f'<text x="{left - 12}" y="{y + 26}" text-anchor="end">{names[name]}</text>',
            f'<rect x="{left}" y="{y}" width="{scale * mean:.1f}" height="40" rx="3" fill="{colour}"/>',
            f'<path d="M{low:.1f} {y + 20}H{high:.1f}M{low:.1f} {y + 14}v12M{high:.1f} {y + 14}v12" '
            f'stroke="{GREY}" stroke-width="2"/>',
            f'<text x="{high + 10:.1f}" y="{y + 26}" font-weight="600">{mean:.0f} s</text>',
        ]
    about = (
        "96 Carvana photographs, U-Net of width 16, two CPU cores; mean and deviation of four runs"
    )
    lines.append(f'<text x="12" y="{height - 8}" font-size="14">{about}</text>')
    return "\n".join([*lines, "</svg>", ""])


# -- gains.svg -----------------------------------------------------------------------------


class Gain(NamedTuple):
    """Scores of a data set without and with what is tried."""

    name: str
    data: str
    before: float
    after: float


def read_gains(page: str) -> list[Gain]:
    """Return the rows of the table in docs/how-to/better-masks.md that have two scores."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (0\.\d+) \| (0\.\d+) \|", page, re.M)
    return [
        Gain(name.replace("`", "").split(",")[0], data.split(",")[0], float(low), float(high))
        for name, data, low, high in rows
    ]


def draw_gains(gains: Sequence[Gain]) -> str:
    """Return a line from the score before to that after for each gain, as SVG."""
    # In pixels: begin and length of the scale, height of a row, space above.
    left, scale, step, top = 350, 620, 34, 46
    lowest = 0.2  # score at the begin
    place = lambda score: left + scale * (score - lowest) / (1 - lowest)  # noqa: E731
    width, height = left + scale + 90, top + step * len(gains) + 36
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="16" fill="{GREY}">',
        "<title>Scores before and after, from the table below</title>",
        f'<text x="{left}" y="22" font-weight="600">Score before and after, higher is better</text>',
    ]
    for k in range(2, 11, 2):
        x = place(k / 10)
        lines.append(
            f'<path d="M{x:.1f} {top - 8}V{height - 30}" stroke="{GREY}" stroke-opacity="0.3"/>'
            f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle" font-size="14">{k / 10}</text>'
        )
    for k, (name, data, before, after) in enumerate(gains):
        y, x, end = top + step * k + 12, place(before), place(after)
        lines += [
            f'<text x="{left - 12}" y="{y + 5}" text-anchor="end">{name} ({data})</text>',
            f'<path d="M{x:.1f} {y}H{end:.1f}" stroke="{BAR}" stroke-width="6"/>',
            f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="#b0b5ba"/>',
            f'<circle cx="{end:.1f}" cy="{y}" r="6" fill="{BAR}"/>',
            f'<text x="{end + 14:.1f}" y="{y + 5}" font-weight="600">{after - before:+.3f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def main(argv: list[str] | None = None) -> int:
    """Draw the pictures."""
    parser = new_parser(__doc__)
    parser.add_argument("--model", type=Path, help="folder of a run (default: train one)")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs", help="folder to write to")
    options = parser.parse_args(argv)
    options.folder = options.folder.resolve()
    page = (ROOT / "docs/quality.md").read_text(encoding="utf-8")
    (options.folder / "speed.svg").write_text(draw_times(read_times(page)), encoding="utf-8")
    page = (ROOT / "docs/how-to/better-masks.md").read_text(encoding="utf-8")
    (options.folder / "gains.svg").write_text(draw_gains(read_gains(page)), encoding="utf-8")
    with tempfile.TemporaryDirectory() as temporary:
        run = options.model or train(Path(temporary))
        if not options.model:
            os.chdir(temporary)  # the run's data are in it
        table = draw_scenes(
            choose(read_scenes(run)), Predictor.from_checkpoint(best_of(run)).labels
        )
    table.save(options.folder / "demo.png", optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
