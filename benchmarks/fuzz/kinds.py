"""The kinds of files, and the commands that are given them."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save

from benchmarks.fuzz.annotations import KINDS as ANNOTATIONS
from benchmarks.fuzz.annotations import write_annotations
from benchmarks.fuzz.child import Case
from benchmarks.fuzz.images import KINDS as IMAGE_KINDS
from benchmarks.fuzz.images import mutate_image
from benchmarks.fuzz.mutations import (
    WORDS,
    YAML,
    Dice,
    mutate_archive,
    mutate_bytes,
    mutate_text,
    mutate_values,
    odd_plain,
    write_special,
)
from benchmarks.fuzz.polygons import build_polygons
from benchmarks.fuzz.samples import TRAIN, Samples, foreign
from benchmarks.fuzz.storage import build_pack, build_pointer
from benchmarks.fuzz.validity import find_invalid_checkpoint, find_invalid_export
from unet_ddp.__main__ import main as command
from unet_ddp.commands import predict, train
from unet_ddp.config import TrainConfig

_ONE_STEP = [*TRAIN, "--stop-after", "1", "--timeout", "5", "--nproc", "1", "--checkpoints", "new"]
_IN_PLACE = ["--workers", "0", "--device", "cpu", "--timeout", "5", "--stop-after", "4"]


def _write(path: Path, data: Callable[[], bytes], dice: Dice) -> Path:
    """Write a mutated file; or instead, now and then, something that is none."""
    if not write_special(path, dice):
        path.write_bytes(data())
    return path


def _saved(content: Any, dice: Dice) -> bytes:
    """Return a checkpoint file in either of torch's two formats."""
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=dice.is_calm or dice.random() < 0.95)
    return file.getvalue()


def _load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


# -- models ---------------------------------------------------------------------------------


def build_checkpoint(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Give a mutated best.pt to predict, evaluate and report; last.pt to --resume and --load."""
    use = dice.choice(("predict",) * 4 + ("evaluate", "report", "resume", "load"))
    name = "last.pt" if use in ("resume", "load") else "best.pt"
    valid = samples.run / name

    def mutated() -> bytes:
        if dice.random() < 0.25:
            return mutate_archive(valid.read_bytes(), dice)
        return _saved(mutate_values(_load(valid), dice), dice)

    if use in ("report", "resume"):
        shutil.copytree(samples.run, folder / "run")
        (folder / "run" / name).unlink()
        path = _write(folder / "run" / name, mutated, dice)
        if use == "report":
            return Case(command, ["report", "run", "--device", "cpu"])
        (folder / "run" / "last.1.pt").unlink(missing_ok=True)
        return Case(train.main, ["--resume", str(path), *_IN_PLACE])
    path = _write(folder / name, mutated, dice)
    if use == "load":
        return Case(train.main, ["--load", str(path), *samples.data_flags, *_ONE_STEP])
    return _predict_or_evaluate(samples, path, is_evaluated=use == "evaluate")


def _predict_or_evaluate(samples: Samples, path: Path, *, is_evaluated: bool) -> Case:
    is_export = path.suffix == ".onnx"
    check = partial(find_invalid_export if is_export else find_invalid_checkpoint, path)
    if is_evaluated:
        flags = [*samples.data_flags, "--output", "scores", "--workers", "0", "--device", "cpu"]
        return Case(command, ["evaluate", "--model", str(path), *flags], check)
    image = str(samples.image("png", 0))
    return Case(
        predict.main, [image, "--model", str(path), "-o", "a.png", "--device", "cpu"], check
    )


def build_foreign(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Give another program's mutated weights to predict, evaluate, --load and --encoder-weights."""
    content = foreign(_load(samples.run / "best.pt"), dice.randrange(4))

    def mutated() -> bytes:
        if use == "encoder-weights" and dice.random() < 0.5:
            state = _load(samples.run / "best.pt")["model"]
            return mutate_bytes(save({k: v.contiguous() for k, v in state.items()}), dice)
        if dice.random() < 0.2:
            return mutate_archive(_saved(content, dice), dice)
        return _saved(mutate_values(content, dice), dice)

    use = dice.choice(("predict", "predict", "evaluate", "load", "encoder-weights"))
    path = _write(folder / "other.pth", mutated, dice)
    if use in ("load", "encoder-weights"):
        return Case(train.main, [f"--{use}", str(path), *samples.data_flags, *_ONE_STEP])
    return _predict_or_evaluate(samples, path, is_evaluated=use == "evaluate")


def build_export(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Give a mutated ONNX file to predict: its bytes, or the metadata in it."""
    import onnx

    valid = (samples.home / "model.onnx").read_bytes()

    def mutated() -> bytes:
        if dice.random() < 0.4:
            return mutate_bytes(valid, dice)
        model = onnx.load_from_string(valid)
        facts = json.loads(model.metadata_props[0].value)
        if dice.random() < 0.2:
            text = mutate_text(json.dumps(facts), dice).decode(errors="replace")
        else:
            text = json.dumps(mutate_values(facts, dice, odd_plain))
        model.metadata_props[0].value = text
        return bytes(model.SerializeToString())

    path = _write(folder / "model.onnx", mutated, dice)
    return _predict_or_evaluate(samples, path, is_evaluated=False)


# -- images and masks -----------------------------------------------------------------------


def build_image(samples: Samples, folder: Path, dice: Dice, *, kind: str) -> Case:
    """Give a mutated image to predict and doctor."""
    valid = samples.image(kind, 0)
    path = _write(folder / valid.name, lambda: mutate_image(valid.read_bytes(), dice), dice)
    if dice.random() < 0.4:
        return _check_pairs(samples, folder, [(path, samples.mask(0))], kind=kind)
    whole = valid.read_bytes()

    def find_invalid() -> str:
        data = path.read_bytes()
        is_cut = len(data) < len(whole) / 2 and whole.startswith(data)
        return "most of the image is missing" if is_cut else ""

    argv = [str(path), "--model", str(samples.model(kind)), "-o", "a.png", "--device", "cpu"]
    return Case(predict.main, argv, find_invalid)


def _check_pairs(
    samples: Samples, folder: Path, pairs: list[tuple[Path, Path]], *, kind: str = "png"
) -> Case:
    rows = [*pairs, *((samples.image(kind, n), samples.mask(n)) for n in range(len(pairs), 6))]
    with (folder / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "mask"), *rows])
    return Case(command, ["doctor", "--list", "pairs.csv", "--batch-size", "2"])


def build_mask(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Give a mutated mask to doctor, evaluate and train."""
    ending = dice.choice((".png", ".png", ".gif", ".tif", ".bmp", ".npy"))
    valid = samples.mask(0).read_bytes()
    if ending != ".png":
        pixels = Image.open(samples.mask(0))
        file = io.BytesIO()
        if ending == ".npy":
            import numpy as np

            np.save(file, np.asarray(pixels))
        else:
            pixels.save(file, {".tif": "TIFF"}.get(ending, ending[1:].upper()), optimize=False)
        valid = file.getvalue()
    for name in ("imgs", "masks"):
        (folder / name).mkdir()
    image = folder / "imgs" / "0.png"
    shutil.copy(samples.image("png", 0), image)
    mask = _write(folder / "masks" / f"0{ending}", lambda: mutate_image(valid, dice), dice)
    use = dice.choice(("doctor", "doctor", "evaluate", "train"))
    if use == "evaluate":
        model = str(samples.run / "best.pt")
        flags = ["--images", "imgs", "--masks", "masks", "--output", "scores", "--workers", "0"]
        return Case(command, ["evaluate", "--model", model, *flags, "--device", "cpu"])
    case = _check_pairs(samples, folder, [(image, mask)])
    return Case(train.main, ["--list", "pairs.csv", *_ONE_STEP]) if use == "train" else case


# -- text -----------------------------------------------------------------------------------


def build_list(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Give a mutated list of pairs to doctor, or one of images to predict."""
    images = [samples.image("png", n) for n in range(6)]
    if dice.random() < 0.4:
        lines = "# images\n" + "\n".join(map(str, images[:2])) + "\n"
        path = _write(folder / "list.txt", lambda: mutate_text(lines, dice), dice)
        flags = ["--model", str(samples.run / "best.pt"), "-o", "out", "--device", "cpu"]
        return Case(predict.main, [str(path), *flags])
    side = ("training",) * 5 + ("validation",)
    rows = [f"{images[n]},{samples.mask(n)},g{n},{side[n]},{'ab'[n % 2]}" for n in range(6)]
    text = "\n".join(["image,mask,group,split,source", *rows]) + "\n"
    path = _write(folder / "pairs.csv", lambda: mutate_text(text, dice), dice)
    shares = ["--shares", "a=0.5", "b=1/2"]
    return Case(command, ["doctor", "--list", str(path), "--batch-size", "2", *shares])


def build_palette(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Give a mutated palette to doctor."""
    text = "name,value\nbackground,0\ncar,255\nignore,7\n"
    path = _write(folder / "palette.csv", lambda: mutate_text(text, dice), dice)
    flags = [*samples.data_flags, "--batch-size", "2"]
    return Case(command, ["doctor", *flags, "--palette", str(path)])


def build_recipe(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Give a mutated recipe to doctor and train."""
    settings = TrainConfig().to_dict() | {
        "mask_threshold": 0,
        "validation": 20.0,
        "crop_size": [16, 16],
    }
    own = {"images", "masks", "checkpoints", "exp_name"}
    names = [name for name in settings if name not in own]
    lines = "\n".join(f"{name}: {json.dumps(settings[name])}" for name in dice.sample(names, 6))
    path = _write(folder / "recipe.yaml", lambda: mutate_text(lines, dice, (*WORDS, *YAML)), dice)
    flags = [*samples.data_flags, "--config", str(path)]
    if dice.random() < 0.6:
        return Case(command, ["doctor", *flags, "--batch-size", "2"])
    return Case(train.main, [*flags, "--no-compile", "--no-wandb", *_ONE_STEP])


def build_annotations(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Give a mutated file of annotations to import."""
    image = samples.image("png", 0)
    file, mutated = write_annotations(dice.choice(ANNOTATIONS), image, folder, dice)
    text = mutated.read_text()
    if mutated.suffix == ".json" and dice.random() < 0.7:
        content = mutate_values({"all": json.loads(text)}, dice, odd_plain).get("all")
        data = json.dumps(content).encode()
    else:
        data = mutate_text(text, dice)
    mutated.unlink()
    _write(mutated, lambda: data, dice)
    flags = ["--images", str(image.parent), "--output", "out"]
    flags += ["--overlap", dice.choice(("later", "small"))]
    return Case(command, ["import", str(file), *flags])


# -- folders --------------------------------------------------------------------------------


def build_cache(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Mutate a file of the cache, and train with it or let doctor use it."""
    shutil.copytree(samples.cache, folder / "cache")
    scans = sorted((folder / "cache").rglob("scan-*.json"))
    pixels = sorted((folder / "cache").rglob("samples/*"), key=Path.read_bytes)
    path = dice.choice(scans if dice.random() < 0.6 else pixels)
    valid = path.read_bytes()
    path.unlink()

    def mutated() -> bytes:
        if path in pixels:
            return mutate_bytes(valid, dice)
        if dice.random() < 0.3:
            return mutate_text(valid.decode(), dice)
        digest, text = valid.split(b"\n", 1)
        return (
            digest + b"\n" + json.dumps(mutate_values(json.loads(text), dice, odd_plain)).encode()
        )

    _write(path, mutated, dice)
    if path in scans and dice.random() < 0.6:
        return Case(command, ["doctor", *samples.data_flags, "--batch-size", "2"])
    return Case(train.main, [*samples.data_flags, *_ONE_STEP, "--cache"])


def build_run(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Mutate metrics.csv, config.yaml, split.csv or run.json of a run, and report on it or resume it."""
    shutil.copytree(samples.run, folder / "run")
    names = ("metrics.csv", "metrics.csv", "config.yaml", "split.csv", "run.json", "run.json")
    path = folder / "run" / dice.choice(names)
    words = (*WORDS, *YAML) if path.suffix == ".yaml" else WORDS
    text = path.read_text()
    path.unlink()
    _write(path, lambda: mutate_text(text, dice, words), dice)
    if dice.random() < 0.7:
        return Case(command, ["report", "run", "--device", "cpu"])
    return Case(train.main, ["--resume", "run/last.pt", *_IN_PLACE])


KINDS: dict[str, Callable[[Samples, Path, Dice], Case]] = {
    "checkpoints": build_checkpoint,
    "other-checkpoints": build_foreign,
    "exports": build_export,
    **{f"image-{kind.replace(' ', '-')}": partial(build_image, kind=kind) for kind in IMAGE_KINDS},
    "masks": build_mask,
    "lists": build_list,
    "palettes": build_palette,
    "annotations": build_annotations,
    "polygons": build_polygons,
    "recipes": build_recipe,
    "caches": build_cache,
    "runs": build_run,
    "packs": build_pack,
    "pointers": build_pointer,
}
