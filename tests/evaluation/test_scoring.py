"""`python -m unet_ddp evaluate`: figures that mean what they say, the same on any number of ranks."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from unet_ddp.evaluation.files import FILES
from unet_ddp.evaluation.output import write_files

from tests import jobs
from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main
from unet_ddp.network.architecture import build_network
from unet_ddp.runs import checkpoint
from unet_ddp.runs.weights import load_weights, read_model

FLAGS = ["--width", "2", "--epochs", "2", "--batch-size", "2", "--workers", "0", "--lr", "0.01"]
SPLIT = ["--scale", "0.5", "--validation", "50"]


@pytest.fixture(scope="module")
def run(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with imgs, masks and a run's checkpoints, 5 of its 10 images for validation."""
    folder = make_set(tmp_path_factory.mktemp("run"), 10, size=(32, 40))
    words = [*data_flags(folder), *FLAGS, *SPLIT]
    status, _, err = ranks.run(1, call_main, "train", words, str(folder))[0]
    assert (status, err) == (0, "")
    return folder


def evaluate(ranks: Ranks, folder: Path, *words: str, size: int = 1) -> list[tuple[int, str, str]]:
    argv = ["evaluate", "--workers", "0", *words]
    return ranks.run(size, call_main, "unet_ddp.__main__", argv, str(folder))


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_files_are_identical_on_1_2_and_3_ranks(ranks: Ranks, run: Path, tmp_path: Path) -> None:
    """5 images, which neither 2 nor 3 divides."""
    for size in (1, 2, 3):
        outcomes = evaluate(ranks, run, "-o", str(tmp_path / str(size)), size=size)
        assert [status for status, _, _ in outcomes] == [0] * size, outcomes
        assert all(out == "" for _, out, _ in outcomes[1:])
        assert "class" in outcomes[0][1] and "boundary F" in outcomes[0][1]
    for name in FILES:
        contents = {(tmp_path / str(size) / name).read_bytes() for size in (1, 2, 3)}
        assert len(contents) == 1 and contents != {b""}, name
    assert sorted(p.name for p in (tmp_path / "3").iterdir()) == sorted(FILES)


def call_in_windows(words: list[str], folder: str) -> tuple[int, str, str]:
    """As on a machine whose memory no image fits into."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unet_ddp.evaluation.trained.TILE", 16)
        patch.setattr("unet_ddp.evaluation.trained.total_memory", lambda device: 0)
        patch.setattr("unet_ddp.evaluation.scoring._AT_ONCE", 100)
        return call_main("unet_ddp.__main__", words, folder)


def test_in_windows_too_ranks_make_no_difference(ranks: Ranks, run: Path, tmp_path: Path) -> None:
    """Images of 16 x 20 at the network's scale in windows of 16."""
    for size in (1, 2, 3):
        argv = ["evaluate", "--workers", "0", "-o", str(tmp_path / str(size))]
        outcomes = ranks.run(size, call_in_windows, argv, str(run))
        assert [status for status, _, _ in outcomes] == [0] * size, outcomes
    for name in FILES:
        assert len({(tmp_path / str(size) / name).read_bytes() for size in (1, 2, 3)}) == 1, name
    evaluate(ranks, run, "-o", str(tmp_path / "whole"))
    found, whole = (json.loads((tmp_path / n / "scores.json").read_text()) for n in ("1", "whole"))
    assert found["classes"][1]["pixels"] == whole["classes"][1]["pixels"]
    assert found["dice"] != whole["dice"]  # windows of one stride do see less
    assert found["dice"] == pytest.approx(whole["dice"], abs=0.2)


def test_windows_are_predicts() -> None:
    """Wide enough, they give the whole image's logits."""
    from unet_ddp.evaluation.trained import Trained

    from tests.prediction.test_tiling import lively_network, noise
    from unet_ddp.data.labels import Labels
    from unet_ddp.data.preprocessing import Preprocessing

    pixels = Preprocessing.for_images(3, 255, scale=1.0)
    trained = Trained(lively_network(), Labels((0, 1)), pixels, torch.device("cpu"))
    image = torch.from_numpy(noise(551, 743))[None]
    whole = trained(image)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unet_ddp.evaluation.trained.TILE", 512)
        patch.setattr("unet_ddp.evaluation.trained.OVERLAP", 0.5)
        assert torch.equal(trained(image), whole)
        patch.setattr("unet_ddp.evaluation.trained.total_memory", lambda device: 0)
        found = trained(image)
    assert not torch.equal(found, whole)
    assert (found - whole).abs().max() < 1e-4 * max(1, float(whole.abs().max()))


def test_reading_processes_have_their_imports(ranks: Ranks) -> None:
    """Spawned ones would begin with seconds of them, for each report of a run by --nproc."""
    assert ranks.run(1, jobs.read_where_processes_are_spawned) == [3]


def test_its_own_validation_gives_trainings_figure(ranks: Ranks, run: Path, tmp_path: Path) -> None:
    out = evaluate(ranks, run, "-o", str(tmp_path / "out"))[0][1]
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    best = checkpoint.load(run / "checkpoints" / "best.pt")
    assert scores["images"] == 5
    assert scores["dice_as_trained"] == best["best"]["score"]
    assert scores["threshold"] == best["threshold"]
    assert f"the checkpoint says {best['best']['score']:.6f}" in out


def test_figures_are_those_of_the_masks_that_the_threshold_gives(
    ranks: Ranks, run: Path, tmp_path: Path
) -> None:
    """Counted again from each image's probabilities, at full size."""
    evaluate(ranks, run, *data_flags(run), "-o", str(tmp_path / "o"), "--threshold", "0.3")
    best = run / "checkpoints" / "best.pt"
    saved = read_model(best)
    assert saved.architecture is not None and saved.preprocessing is not None
    network = build_network(saved.architecture).eval()
    load_weights(network, saved.state, best)
    totals, truths = np.zeros(3, int), 0
    for row in rows(tmp_path / "o" / "per_image.csv"):
        photo = Image.open(run / "imgs" / f"{row['image']}.png")
        small = torch.nn.functional.avg_pool2d(
            torch.from_numpy(np.array(photo)).permute(2, 0, 1)[None].float(), 2
        ).round()
        with torch.inference_mode():
            logits = network(saved.preprocessing(small.permute(0, 2, 3, 1).to(torch.uint8)))
            logits = torch.nn.functional.interpolate(logits, (32, 40), mode="bilinear")
        mine = logits.softmax(1)[0, 1].numpy() >= 0.3
        truth = np.asarray(Image.open(run / "masks" / f"{row['image']}.png")) == 255
        counts = np.array([(mine & truth).sum(), mine.sum(), truth.sum()])
        assert float(row["dice"]) == pytest.approx(2 * counts[0] / counts[1:].sum(), abs=0.02)
        totals += counts
        truths += 1
    scores = json.loads((tmp_path / "o" / "scores.json").read_text())
    foreground = scores["classes"][1]
    assert truths == scores["images"] == 10
    assert foreground["pixels"] == totals[2]
    assert foreground["predicted_pixels"] == pytest.approx(totals[1], rel=0.02)
    assert scores["dice"] == pytest.approx(2 * totals[0] / totals[1:].sum(), abs=0.005)
    table = rows(tmp_path / "o" / "confusion.csv")
    assert sum(int(row[name]) for row in table for name in ("0", "255")) == 10 * 32 * 40
    assert int(table[1]["255"]) / foreground["pixels"] == foreground["recall"]
    curve = rows(tmp_path / "o" / "threshold.csv")
    assert max(float(row["dice"]) for row in curve) == scores["dice_at_best_threshold"]
    bins = rows(tmp_path / "o" / "calibration.csv")
    assert sum(int(row["pixels"]) for row in bins) == 10 * 32 * 40
    names = [row["image"] for row in rows(tmp_path / "o" / "per_image.csv")]
    assert names == sorted(names)


def test_more_classes_and_ignored_pixels(ranks: Ranks, tmp_path: Path) -> None:
    make_set(tmp_path, 6)
    ignored = 0
    for number, path in enumerate(sorted((tmp_path / "masks").iterdir())):
        mask = np.asarray(Image.open(path)) // 255 + np.zeros((24, 32), np.uint8)
        mask[:3], mask[20:, :number] = 2, 9
        ignored += int((mask == 9).sum())
        Image.fromarray(mask).save(path)
    words = [*data_flags(tmp_path), *FLAGS, "--ignore-index", "9"]
    assert ranks.run(1, call_main, "train", words, str(tmp_path))[0][0] == 0
    assert checkpoint.load(tmp_path / "checkpoints" / "best.pt")["threshold"] is None
    status, out, err = evaluate(ranks, tmp_path, *data_flags(tmp_path))[0]
    assert (status, err) == (0, "")
    made = tmp_path / "checkpoints" / "evaluation"
    assert not (made / "threshold.csv").exists() and "threshold" not in out
    scores = json.loads((made / "scores.json").read_text())
    assert [found["name"] for found in scores["classes"]] == ["0", "1", "2"]
    assert sum(found["pixels"] for found in scores["classes"]) == 6 * 24 * 32 - ignored


def test_holes_and_resized_masks_are_treated_as_in_training(tmp_path: Path) -> None:
    """Pixels without data are not scored, at full size as at the network's scale."""
    from unet_ddp.evaluation.trained import Trained

    from unet_ddp.data.dataset import SegmentationDataset
    from unet_ddp.data.labels import IGNORE_ID, Labels
    from unet_ddp.data.pairs import Pair
    from unet_ddp.data.preprocessing import Preprocessing
    from unet_ddp.errors import UserError
    from unet_ddp.evaluation.dataset import EvaluationDataset

    pixels = np.random.default_rng(0).random((20, 30), np.float32)
    pixels[:4] = -9999
    np.save(tmp_path / "a.npy", pixels)
    Image.fromarray(np.full((10, 15), 255, np.uint8)).save(tmp_path / "a.png")
    trained = Trained(
        torch.nn.Identity(),
        Labels((0, 255)),
        Preprocessing(1, (0.5,), (0.25,), 0.5, "float32", 0.0, 1.0, nodata=-9999.0),
        torch.device("cpu"),
    )
    pairs = [Pair("a", tmp_path / "a.npy", tmp_path / "a.png")]
    sample = EvaluationDataset(pairs, trained, full_size=True, resize_masks=True).read(0)
    assert sample.truth.shape == (1, 20, 30) and sample.reduced.shape == (1, 10, 15)
    assert ((sample.truth[0] == IGNORE_ID).numpy() == (pixels == -9999)).all()
    as_trained = SegmentationDataset(
        pairs, trained.labels, trained.preprocessing.format, scale=0.5, resize_masks=True
    )[(0, 0)]
    assert torch.equal(as_trained.mask[None], sample.reduced)
    assert torch.equal(as_trained.image[None], sample.image)
    with pytest.raises(UserError, match="not of the size"):
        EvaluationDataset(pairs, trained, full_size=True).read(0)


# -- mistakes ------------------------------------------------------------------------------


def no_such_model(folder: Path) -> list[str]:
    return ["--model", "nowhere.pt"]


def no_pairs(folder: Path) -> list[str]:
    shutil.rmtree(folder / "masks")
    (folder / "masks").mkdir()
    return data_flags(folder)


def other_values(folder: Path) -> list[str]:
    Image.fromarray(np.full((32, 40), 7, np.uint8)).save(folder / "masks" / "cx.png")
    return data_flags(folder)


def other_channels(folder: Path) -> list[str]:
    """Six bands."""
    import tifffile

    (folder / "imgs" / "cx.png").unlink()
    bands = np.zeros((32, 40, 6), np.uint8)
    tifffile.imwrite(
        folder / "imgs" / "cx.tif", bands, planarconfig="contig", photometric="minisblack"
    )
    return data_flags(folder)


def other_size(folder: Path) -> list[str]:
    Image.new("L", (41, 32)).save(folder / "masks" / "cx.png")
    return data_flags(folder)


def not_writable(folder: Path) -> list[str]:
    (folder / "file").write_text("a file")
    return ["--output", "file/results"]


def holds_results(folder: Path) -> list[str]:
    (folder / "out").mkdir()
    (folder / "out" / "scores.json").write_text("by hand")
    return ["--output", "out"]


def no_labels(folder: Path) -> list[str]:
    """Somebody's network that is no U-Net."""
    torch.save({"layer.weight": torch.zeros(3, 3)}, folder / "other.pt")
    return ["--model", "other.pt", *data_flags(folder)]


def only_weights(folder: Path) -> list[str]:
    """The classic U-Net of another program, whose images nobody knows."""
    content = checkpoint.load(folder / "checkpoints" / "best.pt")
    torch.save(content["model"], folder / "plain.pth")
    return ["--model", "plain.pth"]


def images_gone(folder: Path) -> list[str]:
    shutil.rmtree(folder / "imgs")
    return []


def other_split(folder: Path) -> list[str]:
    for side in ("imgs", "masks"):
        shutil.copy(folder / side / "ax.png", folder / side / "zz.png")
    return []


def images_alone(folder: Path) -> list[str]:
    return ["--images", str(folder / "imgs")]


def no_threshold(folder: Path) -> list[str]:
    return ["--threshold", "1.5"]


MISTAKES: list[tuple[Callable[[Path], list[str]], list[str]]] = [
    (no_such_model, ["nowhere.pt: no such checkpoint"]),
    (no_pairs, ["masks: no masks"]),
    (other_values, ["cx.png: mask value 7", "0, 255"]),
    (other_channels, ["cx.tif", "6 channels", "takes 3"]),
    (other_size, ["cx.png: not of the size"]),
    (not_writable, ["file/results", "choose another folder"]),
    (holds_results, ["out/scores.json", "--overwrite"]),
    (no_labels, ["other.pt", "neither a checkpoint of ours nor a classic U-Net"]),
    (only_weights, ["plain.pth", "--images and --masks"]),
    (images_gone, ["imgs: no such folder", "--images and --masks"]),
    (other_split, ["split", "--images and --masks"]),
    (images_alone, ["--images", "--masks"]),
    (no_threshold, ["--threshold 1.5", "below 1"]),
]


@pytest.mark.parametrize(("mistake", "said"), MISTAKES, ids=lambda v: getattr(v, "__name__", ""))
def test_mistake(
    ranks: Ranks,
    run: Path,
    tmp_path: Path,
    mistake: Callable[[Path], list[str]],
    said: list[str],
) -> None:
    """One line, on two ranks where they look at files, and nothing written."""
    size = 1 if mistake in (images_alone, no_threshold) else 2
    folder = tmp_path / "copy"
    shutil.copytree(run, folder)
    content = checkpoint.load(folder / "checkpoints" / "best.pt")
    for side, name in (("images", "imgs"), ("masks", "masks")):
        content["config"][side] = str(folder / name)
    checkpoint.save(folder / "checkpoints" / "best.pt", content)
    words = mistake(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    outcomes = evaluate(ranks, folder, *words, size=size)
    assert [status for status, _, _ in outcomes] == [2] * size, outcomes
    lines = "".join(err for _, _, err in outcomes).splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), lines
    for part in said:
        assert part in lines[0]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_results_are_replaced_only_when_told(ranks: Ranks, run: Path, tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text("by hand")
    (tmp_path / "notes.txt").write_text("by hand")
    assert evaluate(ranks, run, "-o", str(tmp_path))[0][0] == 2
    assert (tmp_path / "scores.json").read_text() == "by hand"
    assert evaluate(ranks, run, "-o", str(tmp_path), "--overwrite")[0][0] == 0
    assert json.loads((tmp_path / "scores.json").read_text())["images"] == 5
    assert (tmp_path / "notes.txt").read_text() == "by hand"


def test_results_that_cannot_be_written_leave_those_before(tmp_path: Path) -> None:
    from unet_ddp.errors import RunError

    (tmp_path / "scores.json").write_text("before")
    (tmp_path / "confusion.csv.tmp").mkdir()  # in the way
    with pytest.raises(RunError, match=r"confusion\.csv"):
        write_files(tmp_path, {"scores.json": "after", "confusion.csv": "after"})
    assert (tmp_path / "scores.json").read_text() == "before"
