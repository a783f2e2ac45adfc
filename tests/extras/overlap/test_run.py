"""A run with overlapping classes: trained, stopped, resumed, scored and predicted."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from tests.extras.packs.test_command import pack
from tests.ranks import Ranks, call_main, call_train
from unet_ddp import Predictor
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.cli import parse_train
from unet_ddp.commands.evaluate import EvaluateConfig, find_job
from unet_ddp.data.matching import find_pairs
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.evaluation.dataset import EvaluationDataset
from unet_ddp.evaluation.scoring import score_pairs
from unet_ddp.extras.onnx.export import main as export
from unet_ddp.extras.report.gallery import make_gallery

CLASSES = ("disc", "square")
FLAGS = [
    "--overlap", "--class-names", "disc", "square", "--epochs", "3", "--validation", "25",
    "--workers", "0", "--scale", "1", "--width", "4", "--learning-rate", "0.01", "--augmentation",
    "overhead", "--precision", "float32",
]  # fmt: skip


def draw_set(folder: Path, rng: np.random.Generator, count: int = 8) -> Path:
    """Pictures of a red disc and a green square that overlap, and masks of their bits."""
    rows, columns = np.mgrid[:32, :32]
    for name in ("imgs", "masks"):
        (folder / name).mkdir(parents=True)
    for k in range(count):
        y, x = rng.integers(10, 22, 2)
        disc = np.hypot(rows - y, columns - x) < 7
        square = (abs(rows - y - 5) < 6) & (abs(columns - x + 4) < 6)
        image = rng.integers(0, 60, (32, 32, 3)) + 150 * np.stack([disc, square, 0 * disc], -1)
        Image.fromarray(image.astype(np.uint8)).save(folder / f"imgs/{k}.png")
        Image.fromarray((disc + 2 * square).astype(np.uint8)).save(folder / f"masks/{k}.png")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_set(tmp_path_factory.mktemp("overlap"), np.random.default_rng(5))


def train(ranks: Ranks, size: int, folder: Path, *argv: str) -> str:
    folder.mkdir(exist_ok=True)
    outcomes = ranks.run(size, call_train, list(argv), str(folder))
    statuses, outs, errs = zip(*outcomes, strict=True)
    assert max(statuses) == 0, errs
    return "".join(outs)


def start(ranks: Ranks, size: int, folder: Path, data: Path, *more: str) -> str:
    where = ["--images", str(data / "imgs"), "--masks", str(data / "masks")]
    return train(ranks, size, folder, *where, *FLAGS, "--batch-size", str(2 // size), *more)


@pytest.fixture(scope="module")
def run(ranks: Ranks, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    said = start(ranks, 2, folder, data)
    assert "classes: disc, square, which may overlap" in said
    return folder / "checkpoints"


@pytest.mark.thorough
def test_a_stopped_run_ends_as_an_undisturbed_one(
    ranks: Ranks, data: Path, run: Path, tmp_path: Path
) -> None:
    start(ranks, 2, tmp_path, data, "--stop-after", "2")
    for stop in ("3", "7", "9"):
        train(ranks, 2, tmp_path, "--resume", "--workers", "0", "--stop-after", stop)
    for name in ("last.pt", "best.pt"):
        ours, theirs = (checkpoint.load(each / name) for each in (tmp_path / "checkpoints", run))
        assert ours["model"].keys() == theirs["model"].keys()
        for key, value in ours["model"].items():
            assert torch.equal(value, theirs["model"][key]), (name, key)
        assert ours["labels"] == theirs["labels"]
    assert theirs["labels"]["thresholds"] != []


def evaluate(ranks: Ranks, size: int, run: Path, folder: Path) -> dict[str, Any]:
    argv = ["--model", str(run / "best.pt"), "--output", str(folder), "--workers", "0"]
    outcomes = ranks.run(size, call_main, "unet_ddp.commands.evaluate", argv, str(run))
    assert max(status for status, *_ in outcomes) == 0, outcomes
    assert not (folder / "confusion.csv").exists()
    scores: dict[str, Any] = json.loads((folder / "scores.json").read_text())
    return scores


def test_scores_are_those_of_its_validation_on_any_ranks(
    ranks: Ranks, run: Path, tmp_path: Path
) -> None:
    one, two = (evaluate(ranks, size, run, tmp_path / str(size)) for size in (1, 2))
    assert one == two
    saved = checkpoint.load(run / "best.pt")["best"]
    assert one["dice_as_trained"] == pytest.approx(saved["dice"], abs=1e-6)
    best = saved["score"]  # with the thresholds that it was saved with
    dice = [each["dice"] for each in one["classes"]]
    assert [each["name"] for each in one["classes"]] == list(CLASSES)
    assert one["dice"] == pytest.approx(sum(dice) / 2) and one["dice"] >= best - 1e-6


def test_a_pack_of_other_classes_is_not_scored(data: Path, run: Path, tmp_path: Path) -> None:
    for names in (CLASSES, ("circle", "square")):
        for k in range(8):
            mask = np.asarray(Image.open(data / f"masks/{k}.png"))
            for bit, name in enumerate(names):
                path = tmp_path / names[0] / name / f"{k}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(mask >> bit & 1).save(path)
        where = ["--images", str(data / "imgs"), "--masks", str(tmp_path / names[0])]
        packed = tmp_path / f"{names[0]}.pack"
        pack(parse_train([*where, "--overlap"]).data, packed)
        config = EvaluateConfig(
            model=str(run / "best.pt"), images=str(packed), output=str(tmp_path / "out")
        )
        if names == CLASSES:
            assert len(find_job(config).pairs) == 8
        else:
            with pytest.raises(
                UserError, match=r"circle\.pack: .* circle, square, .* disc, square"
            ):
                find_job(config)


def predict(ranks: Ranks, data: Path, run: Path, folder: Path, *more: str) -> str:
    images = [str(data / f"imgs/{k}.png") for k in (1, 2)]
    argv = [*images, "-m", str(run / "best.pt"), "-o", str(folder), *more]
    ((status, out, error),) = ranks.run(1, call_main, "predict", argv, str(run))
    assert status == 0, error
    return out


def test_each_class_is_predicted_by_itself(
    ranks: Ranks, data: Path, run: Path, tmp_path: Path
) -> None:
    predictor = Predictor.from_checkpoint(run / "best.pt")
    prediction = predictor(data / "imgs/1.png")
    assert prediction.masks.shape == (2, 32, 32) and prediction.masks.dtype == bool
    limits = np.reshape(predictor.labels.to_dict()["thresholds"], (2, 1, 1))
    assert (prediction.masks == (prediction.probabilities >= limits)).all()
    assert prediction.shares == prediction.masks.mean((1, 2)).tolist()
    folder = tmp_path / "masks"
    folder.mkdir()
    said = predict(ranks, data, run, folder, "--overlay", "--probabilities", "png")
    assert re.search(r"/1_mask_disc.png, \S*/1_mask_square.png and 3 more: disc", said)
    predict(ranks, data, run, folder, "--mask-format", "tif")
    for name, mask in zip(CLASSES, prediction.masks, strict=True):
        assert (np.asarray(Image.open(folder / f"1_mask_{name}.png")) == 255 * mask).all()
    assert (tifffile.imread(folder / "1_mask.tif") == 255 * prediction.masks).all()


@pytest.mark.parametrize("form", ["png", "tif"])
def test_masks_of_an_earlier_prediction_are_read_again(
    ranks: Ranks, data: Path, run: Path, tmp_path: Path, form: str
) -> None:
    how = ["--mask-format", form, "--polygons"]
    pytest.importorskip("rasterio")
    predict(ranks, data, run, tmp_path, *how, str(tmp_path / "one.json"))
    predict(ranks, data, run, tmp_path, *how, str(tmp_path / "two.json"), "--skip-existing")
    found = json.loads((tmp_path / "one.json").read_text())
    assert {each["properties"]["class"] for each in found["features"]} == {*CLASSES}
    assert found == json.loads((tmp_path / "two.json").read_text())
    damaged = sorted(path for path in tmp_path.iterdir() if path.suffix[1:] == form)[-1]
    before = damaged.read_bytes()
    damaged.write_bytes(before[: len(before) // 2])
    said = predict(
        ranks, data, run, tmp_path, *how, str(tmp_path / "three.json"), "--skip-existing"
    )
    assert (
        f"predicting again 1 file cut off, or of another size than the image, e.g. {damaged}"
        in said
    )
    assert found == json.loads((tmp_path / "three.json").read_text())
    assert damaged.read_bytes() == before


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--rank", "--rank: is for classes that do not overlap"),
        ("--rle", "--rle: its format has background and one class, this network has disc, square"),
        (
            "--threshold=0.3",
            "--threshold 0.3: is for two classes, this network has 2 and takes each class from its own "
            "threshold on; leave it out",
        ),
    ],
)
def test_outputs_that_need_one_class_for_each_pixel_are_refused(
    ranks: Ranks, data: Path, run: Path, tmp_path: Path, flag: str, message: str
) -> None:
    argv = [str(data / "imgs/1.png"), "-m", str(run / "best.pt"), "-o", str(tmp_path)]
    argv += [flag] if "=" in flag else [flag, str(tmp_path / "x.csv")]
    ((status, _, error),) = ranks.run(1, call_main, "predict", argv, str(run))
    assert status == 2 and error.startswith(f"error: {message}"), error


def test_the_report_shows_the_masks_that_are_predicted(data: Path, run: Path) -> None:
    predictor = Predictor.from_checkpoint(run / "best.pt", fold=False)
    pairs = find_pairs(data / "imgs", data / "masks")
    dataset = EvaluationDataset(pairs, predictor, full_size=True)
    evaluation = score_pairs(predictor, dataset, World(), threshold=None, workers=0)
    pictures = make_gallery(evaluation, predictor, dataset)
    assert len(pictures) == len(pairs)
    for picture in pictures:
        truth = np.asarray(Image.open(data / f"masks/{picture.name}.png"))
        values = np.asarray(predictor(data / f"imgs/{picture.name}.png").to_image())
        content = picture.layers["difference"].partition(",")[2]
        wrong = np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))) > 0
        assert (wrong == (values != truth)).all(), picture.name


@pytest.mark.thorough
@pytest.mark.release
def test_an_exported_network_predicts_the_same(data: Path, run: Path, tmp_path: Path) -> None:
    for library in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(library)
    best, exported = run / "best.pt", tmp_path / "net.onnx"
    export([str(best), str(exported)])
    own, other = (Predictor.from_checkpoint(path)(data / "imgs/1.png") for path in (best, exported))
    assert abs(own.probabilities - other.probabilities).max() < 1e-4
    assert (own.masks == other.masks).mean() > 0.999
    for form, found in (
        ("--whole", "masks of overlapping"),
        ("--qgis", "one class for each pixel"),
    ):
        with pytest.raises(UserError, match=f"{form}: .*{found}"):
            export([str(best), str(tmp_path / "no.onnx"), form])
        assert not (tmp_path / "no.onnx").exists()
