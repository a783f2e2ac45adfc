"""Files as this version writes them, which every later version 1.x must read: tests/test_released.py holds it to that.

    python -m benchmarks.released tests/released/1.0

Runs, a pack, exported networks, the masks and scores that belong to them, and the public interface. All images
are drawn here. Made once for each released version: a version that can't read the files of one before is at fault.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.interface import describe_interface
from benchmarks.timing import new_parser
from tests.ranks import call_main
from unet_ddp import Predictor

HEIGHT, WIDTH = 24, 32  # of images
COUNT, PACKED = 12, 4  # images in a case and in the pack
PARTS = "released_parts"  # the module of the user's own parts
OWN = ["--model", f"{PARTS}:Tiny", "--width", "8"]
TRAIN = [
    "--no-amp", "--workers", "0", "--device", "cpu", "-b", "2", "--validation", "50", "--lr", "0.02",
]  # fmt: skip
CASES: dict[str, list[str]] = {
    "two": ["--width", "1", "--bilinear", "--epochs", "9", "--stop-after", "23"],
    "classes": [
        *OWN, "--epochs", "16", "--stop-after", "40", "--class-names", "ground", "square", "bar", "--ema", "0.5",
        "--loss", f"{PARTS}:SquaredDice+ce", "--augmentation", f"{PARTS}:darker", "--callback", f"{PARTS}:Notes",
    ],
    "overlap": [*OWN, "--epochs", "16", "--overlap"],
    "objects": [*OWN, "--epochs", "16", "--instances"],
}  # fmt: skip
"""The runs, by their names, with their flags; `two` and `classes` are stopped before their end."""
STOPPED = {"two": [], "classes": [*OWN, *CASES["classes"][-6:]]}
"""Those that are continued, with what has to be typed again: a checkpoint starts no code."""
KEPT = ("config.yaml", "run.json", "metrics.csv", "split.csv", "best.pt", "last.pt")
TABLES = {"two": ["rank"], "objects": ["objects", "counts"]}
"""The flags of tables that predict writes of a case."""
LEAST = 2e-5  # by which each probability must differ from those where another class is predicted
_HOME = "/data"  # stands for the folder in which the files were made


# -- images --------------------------------------------------------------------------------


def draw(folder: Path, case: str, count: int = COUNT) -> None:
    """Write the images and masks of a case to a folder: shapes on a ramp, by whole numbers, the same anywhere."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    for k in range(count):
        square = _fill(2 + 7 * k % 10, 3 + 5 * k % 12, 9, 9)
        bar = _fill(12 + 3 * k % 7, 1 + 11 * k % 9, 4, 22)
        image = np.stack([rows * 2 + k, columns * 2, rows + columns + k], -1)
        image = image + square[..., None] * (120, 60, 0) + bar[..., None] * (0, 40, 120)
        _save(folder / f"imgs/{k:02d}.bmp", image.clip(0, 255))
        for name, mask in _masks(case, square, bar).items():
            _save(folder / "masks" / name / f"{k:02d}.bmp", mask)


def _masks(case: str, square: NDArray[Any], bar: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the masks of an image by the folders below masks/ that they are in."""
    if case == "two":
        return {"": square * 255}
    if case == "overlap":
        return {"square": square * 255, "bar": bar * 255}
    return {"": np.where(bar, 2, square)}  # as classes, or as the numbers of objects


def _fill(top: int, left: int, height: int, width: int) -> NDArray[Any]:
    """Return (H, W) with ones in a rectangle, the rest zeros."""
    mask = np.zeros((HEIGHT, WIDTH), np.int64)
    mask[top : top + height, left : left + width] = 1
    return mask


def _save(path: Path, pixels: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


# -- commands ------------------------------------------------------------------------------


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Work in a folder as a user does, whose own parts are there."""
    before, path, argv = Path.cwd(), [*sys.path], sys.argv
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:], sys.argv = path, argv
        sys.modules.pop(PARTS, None)


def network_flags(case: str) -> list[str]:
    """Return what predict and evaluate need to be told of a case's network."""
    return ["--network", f"{PARTS}:Tiny"] if case != "two" else []


def predicted(case: str, folder: str) -> list[str]:
    """Return what predict is told of a case: two images, and what it writes of them to a folder."""
    words = [f"{case}/imgs/00.bmp", f"{case}/imgs/01.bmp", "-o", folder]
    for flag in TABLES.get(case, []):
        words += [f"--{flag}", f"{folder}/{flag}.csv"]
    return words


def run(*words: str) -> None:
    """Run a command, which must succeed."""
    sys.argv = ["unet-ddp", *words]  # what run.json says was typed
    status, _, said = call_main("unet_ddp.__main__", [*words], ".")
    assert status == 0, (words, said)


def make_case(case: str) -> None:
    """Draw the data of a case, train on them, and keep the masks and scores of its best network."""
    draw(Path(case), case)
    data = ["--images", f"{case}/imgs", "--masks", f"{case}/masks"]
    run("train", *data, *TRAIN, *CASES[case], "--exp-name", case)
    model = ["--model", f"checkpoints/{case}/best.pt", *network_flags(case), "--device", "cpu"]
    run("predict", *predicted(case, f"masks/{case}"), *model)
    run("evaluate", *model, "--workers", "0")
    check_margins(case)


def check_margins(case: str) -> None:
    """Fail if a pixel of a case is so close to another class that another machine may predict that."""
    own = {} if case == "two" else {"network": f"{PARTS}:Tiny"}
    predictor = Predictor.from_checkpoint(f"checkpoints/{case}/best.pt", device="cpu", **own)
    for path in sorted(Path(case, "imgs").iterdir()):
        found = predictor(path).probabilities  # (C, H, W)
        if case in ("two", "overlap"):
            margin = min(abs(found[-2:] - each).min() for each in (0.5, predictor.threshold or 0.5))
        else:
            first, second = np.sort(found, axis=0)[[-1, -2]]
            margin = (first - second).min()
        if margin < LEAST:
            raise SystemExit(
                f"error: {path}: {margin:.1e} from another class; change the --lr of {case}"
            )


def make_others() -> None:
    """Write a pack, exported networks, and the rest of the runs that were stopped."""
    draw(Path("packed"), "two", PACKED)
    run(
        "pack", "--images", "packed/imgs", "--masks", "packed/masks", "-o", "pack", "--workers", "1"
    )
    run("export", "checkpoints/classes/best.pt", "classes.onnx", *network_flags("classes"))
    run("export", "checkpoints/classes/best.pt", "--card", "card", *network_flags("classes"))
    for case, flags in STOPPED.items():
        shutil.copytree(f"checkpoints/{case}", f"ended/{case}")
        run("train", "--resume", f"ended/{case}/last.pt", "--workers", "0", *flags)


# -- what is kept --------------------------------------------------------------------------


def neutral(content: Any, home: str) -> Any:
    """Return the content of a file with `_HOME` in place of this machine's folder."""
    if isinstance(content, str):
        return content.replace(home, _HOME)
    if isinstance(content, dict):
        return {name: neutral(each, home) for name, each in content.items()}
    if isinstance(content, list):
        return [neutral(each, home) for each in content]
    return content


def keep(source: Path, to: Path, home: str) -> None:
    """Copy a file, compressed if it is no text."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".pt":
        torch.save(neutral(torch.load(source, weights_only=True), home), source)
    elif source.suffix in (".csv", ".yaml", ".json", ".py"):
        to.write_text(neutral(source.read_text(encoding="utf-8"), home), encoding="utf-8")
        return
    elif source.suffix == ".png":
        shutil.copyfile(source, to)
        return
    packed = lzma.compress(source.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
    to.with_name(f"{to.name}.xz").write_bytes(packed)


def keep_all(work: Path, folder: Path) -> None:
    """Copy all that later versions must read, and what they must find in it."""
    home, scores = str(work), {}
    for case in CASES:
        run_folder = work / "checkpoints" / case
        for name in KEPT if case in STOPPED else ("best.pt",):
            keep(run_folder / name, folder / case / name, home)
        evaluation = run_folder / "evaluation"
        tables = {
            each.name: each.read_text().splitlines()[0] for each in sorted(evaluation.glob("*.csv"))
        }
        scores[case] = {**json.loads((evaluation / "scores.json").read_text()), "tables": tables}
    for name in ("masks", "pack", "card"):
        for path in sorted(filter(Path.is_file, (work / name).rglob("*"))):
            if path.suffix not in (".md",):
                keep(path, folder / path.relative_to(work), home)
    for case in STOPPED:
        keep(work / "ended" / case / "metrics.csv", folder / case / "ended.csv", home)
    keep(work / "classes.onnx", folder / "classes.onnx", home)
    keep(work / f"{PARTS}.py", folder / f"{PARTS}.py", home)
    write_json(folder / "scores.json", scores)
    write_json(folder / "interface.json", describe_interface())


def write_json(path: Path, content: Any) -> None:
    """Write JSON whose innermost objects take a line each."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    text = re.sub(r"\{([^{}]*)\}", lambda found: " ".join(found[0].split()), text)
    path.write_text(f"{text}\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Write the files to a new folder."""
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path, help="a new folder, named as the version")
    folder = parser.parse_args(argv).folder.absolute()
    if folder.exists():
        parser.error(f"{folder} exists: the files of a released version stay as they are")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        shutil.copyfile(Path(__file__).with_name(f"{PARTS}.py"), work / f"{PARTS}.py")
        with working_in(work), mock.patch("socket.gethostname", return_value="host"):
            for case in CASES:
                make_case(case)
            make_others()
        keep_all(work, folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"wrote {folder}: {size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
