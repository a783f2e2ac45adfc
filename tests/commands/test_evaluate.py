"""`python -m unet_ddp evaluate`: what is scored, where results go, the same on any number of ranks."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from tests import jobs
from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main, call_train
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.checkpoints.run_files import EVALUATION_FILES
from unet_ddp.cli import parse
from unet_ddp.commands.evaluate import (
    EvaluateConfig,
    evaluate,
    main,
)
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.device import is_faster_in_bfloat16
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.evaluation.tables import write_results
from unet_ddp.extras.report.write import write_report
from unet_ddp.network.architecture import build_network, choose_architecture

GIVEN = ["--images", "imgs", "--masks", "masks"]


def run(*argv: str) -> dict[str, Any]:
    """Evaluate in this process; return scores.json."""
    config = parse(EvaluateConfig, [*argv, "--workers", "0"], prog="evaluate")
    assert evaluate(config, World()) == 0
    output = Path(config.output or "checkpoints/evaluation")
    scores: dict[str, Any] = json.loads((output / "scores.json").read_text(encoding="utf-8"))
    return scores


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with ten pairs in imgs and masks, and a run of which five validate."""
    make_set(tmp_path, 10, size=(32, 40))
    torch.manual_seed(2)
    architecture = choose_architecture("unet", None, channels=3, num_classes=2, width=2)
    content = {
        "model": build_network(architecture).state_dict(),
        "architecture": architecture.to_dict(),
        "labels": Labels((0, 255)).to_dict(),
        "preprocessing": Preprocessing.for_images(3, scale=0.5).to_dict(),
        "threshold": 0.25,
        "best": {"score": 0.75, "name": "Dice", "dice": 0.75, "epoch": 6, "improved": 6},
        "config": {"images": "imgs", "masks": "masks", "validation": 50.0},
    }
    (tmp_path / "checkpoints").mkdir()
    checkpoint.save(tmp_path / "checkpoints" / "best.pt", content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(folder: Path, name: str = "best.pt", **entries: Any) -> None:
    """Write best.pt again as `name`, with other entries."""
    content = checkpoint.load(folder / "checkpoints" / "best.pt")
    checkpoint.save(folder / "checkpoints" / name, {**content, **entries})


# -- the command line ----------------------------------------------------------------------


def test_defaults() -> None:
    assert parse(EvaluateConfig, [], prog="evaluate") == EvaluateConfig(
        model=None, images=None, masks=None, output=None, threshold=None, tolerance=None,
        scale=None, overwrite=False, nproc=1, workers=None, device="auto", timeout=600.0,
    )  # fmt: skip


def test_flags() -> None:
    argv = "-m a.pt --images b --masks c -o d --threshold 0.999 --tolerance 0 -s 0.5 --overwrite"
    more = "--nproc 2 --workers 0 --precision float32 --device cpu --timeout 0.1"
    assert parse(EvaluateConfig, [*argv.split(), *more.split()], prog="evaluate") == EvaluateConfig(
        model="a.pt", images="b", masks="c", output="d", threshold=0.999, tolerance=0.0, scale=0.5,
        overwrite=True, nproc=2, workers=0, precision="float32", device="cpu", timeout=0.1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--threshold 0", "--threshold 0.0: must be above 0 and below 1"),
        ("--threshold 1", "--threshold 1.0: must be above 0 and below 1"),
        ("--tolerance -0.1", "--tolerance -0.1: must be 0 or more"),
        ("--nproc 0", "--nproc 0: must be 1 or more"),
        ("--workers -1", "--workers -1: must be 0 or more"),
        ("--timeout 0", "--timeout 0.0: must be above 0 and at most 1000000"),
        ("--masks a", "--images and --masks: use both or neither"),
    ],
)
def test_limits(argv: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv.split())
    assert stopped.value.code == 2 and capsys.readouterr().err == f"error: {message}\n"


# -- what is scored ------------------------------------------------------------------------


def test_without_flags_the_runs_validation_images_are_scored(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--workers", "0"])
    assert stopped.value.code == 0
    scores = json.loads((here / "checkpoints/evaluation/scores.json").read_text())
    assert (scores["model"], scores["images"]) == ("checkpoints/best.pt", 5)
    assert scores["scored"] == "5 images of its run's validation set"
    assert (scores["threshold"], scores["size"]) == (0.25, "the images' own")
    assert sum(each["pixels"] for each in scores["classes"]) == 5 * 32 * 40
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "model: checkpoints/best.pt",
        "scored: 5 images of its run's validation set, at their own size; foreground from probability "
        "0.25 on",
    ]
    assert lines[3].startswith("class ")
    assert lines[-2] == (
        "as training's validation scores it (scale 0.5, without a threshold): Dice "
        f"{scores['dice_as_trained']:.6f}; the checkpoint says 0.750000"
    )
    assert lines[-1] == f"wrote checkpoints/evaluation/: {', '.join(sorted(EVALUATION_FILES))}"
    page = (here / "checkpoints/evaluation/report.html").read_text(encoding="utf-8")
    assert "<dd>7 epochs</dd>" in page and "<h1>Evaluation of checkpoints/best.pt</h1>" in page
    assert page.count('<li class="card"') == 5 and "<dt>images</dt><dd>5 images of" in page


@pytest.mark.parametrize(("dice", "said"), [(0.0, "0.000000"), (None, "nan")])
def test_a_dice_of_zero_is_no_missing_one(
    here: Path, capsys: pytest.CaptureFixture[str], dice: float | None, said: str
) -> None:
    best = checkpoint.load(here / "checkpoints" / "best.pt")["best"]
    change(here, best={**best, "score": 0.0, "dice": dice})
    run()
    assert f"; the checkpoint says {said}\n" in capsys.readouterr().out


def test_images_that_are_given_are_all_scored(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = run(*GIVEN, "-o", "out", "--threshold", "0.5", "--tolerance", "3")
    assert scores["scored"] == "10 images in imgs" and scores["images"] == 10
    assert (scores["threshold"], scores["boundary_tolerance"]) == (0.5, 3)
    assert scores["dice"] == scores["dice_at_0.5"]
    assert "the checkpoint says" not in capsys.readouterr().out


def test_the_last_checkpoint_has_no_score_to_compare_with(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(here, "last.pt", optimizer={})
    run("--model", "checkpoints/last.pt")
    assert "the checkpoint says" not in capsys.readouterr().out
    page = (here / "checkpoints/evaluation/report.html").read_text(encoding="utf-8")
    assert "trained for" not in page


def test_random_weights_are_not_scored_without_a_word(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue: a start that failed at its first step had left them."""
    change(here, "last.pt", optimizer={}, position={"epoch": 0, "step": 0})
    run("--model", "checkpoints/last.pt")
    line = "warning: checkpoints/last.pt: 0 steps trained: its weights are random\n"
    assert line in capsys.readouterr().out


def test_without_a_threshold_the_most_probable_class_counts(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(here, threshold=None)
    assert run()["threshold"] is None
    assert "at their own size; the most probable class\n" in capsys.readouterr().out


@pytest.mark.parametrize("has_objects", [False, True], ids=["classes", "objects"])
def test_the_score_that_chose_the_epoch_is_in_the_table_and_the_files(
    here: Path, capsys: pytest.CaptureFixture[str], has_objects: bool
) -> None:
    """Of classes the Dice at the threshold that was found, of objects the mean AP, which comes first."""
    for path in (
        (here / "masks").iterdir() if has_objects else ()
    ):  # the square, and one in a corner
        image, mask = (np.array(Image.open(here / name / path.name)) for name in ("imgs", "masks"))
        image[24:, 30:], mask[:] = 200, mask > 0
        mask[24:, 30:] = 2
        Image.fromarray(image).save(here / "imgs" / path.name)
        Image.fromarray(mask).save(path)
    shutil.rmtree("checkpoints")
    flags = "--epochs 2 --width 4 --batch-size 1 --lr 0.01 --validation 40 --workers 0 --device cpu --precision float32"
    more = ["--instances"] * has_objects
    status, _, err = call_train([*GIVEN, *flags.split(), *more], str(here))
    assert status == 0, err
    best = checkpoint.load(here / "checkpoints" / "best.pt")["best"]
    assert 0 < best["score"] < 1
    scores = run()
    lines = capsys.readouterr().out.splitlines()
    (dice,) = (k for k, line in enumerate(lines) if line.startswith("Dice "))
    if has_objects:
        assert best["name"] == "mean AP"
        assert scores["objects"]["mean_ap"] == best["score"]
        (line,) = (k for k, line in enumerate(lines) if line.startswith("objects: AP "))
        assert f", {best['score']:.4f} over 0.5 to 0.95; " in lines[line] and line < dice
    else:
        assert best["name"] == "Dice"
        assert scores["dice"] == best["score"]
        assert lines[dice].startswith(f"Dice {best['score']:.4f}, ")
    with (here / "checkpoints" / "metrics.csv").open(newline="") as file:
        chosen = max(float(row["validation_score"]) for row in csv.DictReader(file))
    assert chosen == best["score"]


def test_masks_are_resized_if_the_run_did(here: Path) -> None:
    mask = here / "masks" / "ax.png"
    Image.open(mask).resize((80, 64), Image.Resampling.NEAREST).save(mask)
    with pytest.raises(UserError, match=r"ax\.png is .*, its image "):
        run(*GIVEN)
    change(here, config={"resize_masks": True})
    assert run(*GIVEN)["images"] == 10


def test_weights_of_another_program_are_scored_at_the_scale_given(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = checkpoint.load(here / "checkpoints" / "best.pt")
    weights = {"module." + key: value for key, value in content["model"].items()}
    torch.save({"state_dict": weights, "best": 0.8, "config": "unet.yaml"}, "plain.pth")
    argv = ["-m", "plain.pth", *GIVEN, "-o", "plain"]
    quarter = run(*argv, "--scale", "0.25")
    out = capsys.readouterr().out
    assert (
        out.startswith("model: plain.pth\n  ") and "module." in out and "the checkpoint" not in out
    )
    assert "module." in Path("plain/report.html").read_text(encoding="utf-8")
    half = run(*argv, "--overwrite")
    assert quarter["images"] == half["images"] == 10
    assert quarter["calibration_error"] != half["calibration_error"]


def test_the_network_is_scored_as_it_was_trained(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folding batch norm would change the last bits, and so would another number of threads."""
    torch.set_num_threads(2)
    folded: list[Any] = []
    fold = "unet_ddp.prediction.backends.fold_batchnorm"
    monkeypatch.setattr(fold, lambda network, _: folded.append(network) or network)
    run()
    assert torch.get_num_threads() == 1
    write_report(here / "checkpoints", find_pairs(Path("imgs"), Path("masks")), World(), workers=0)
    assert not folded


# -- where results go ----------------------------------------------------------------------


def test_results_are_replaced_only_with_overwrite(here: Path) -> None:
    output = here / "out"
    output.mkdir()
    for name in ("threshold.csv", "notes.txt"):
        (output / name).write_text("by hand")
    with pytest.raises(UserError) as caught:
        run("-o", "out")
    message = "out/threshold.csv already exists; use --overwrite, or another --output"
    assert str(caught.value) == message
    run("-o", "out", "--overwrite")
    assert {path.name for path in output.iterdir()} == {*EVALUATION_FILES, "notes.txt"}
    assert (output / "notes.txt").read_text() == "by hand"


def test_results_do_not_replace_the_model(here: Path) -> None:
    """A checkpoint in the results' folder that has the name of one of them."""
    for name in ("report.html", "link.pt"):
        shutil.copy("checkpoints/best.pt", name)
    Path("checkpoints/scores.json").hardlink_to("link.pt")
    for model, output in (("report.html", "."), ("link.pt", "checkpoints")):
        with pytest.raises(UserError, match=f"--output .*: would replace the model {model}; name"):
            run("-m", model, "-o", output, "--overwrite", *GIVEN)


def test_all_files_are_written_or_none(tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text("before")
    with pytest.raises(UserError, match=r"File name too long; use another --output$"):
        write_results(tmp_path, {"scores.json": "after", "x" * 300: "a name that is too long"})
    assert [path.name for path in tmp_path.iterdir()] == ["scores.json"]
    assert (tmp_path / "scores.json").read_text() == "before"


def test_results_of_an_earlier_evaluation_do_not_stay(tmp_path: Path) -> None:
    for name in ("scores.json", "threshold.csv"):
        (tmp_path / name).write_text("before")
    write_results(tmp_path, {"scores.json": "ä \udcff"})
    assert (tmp_path / "scores.json").read_bytes() == b"\xc3\xa4 \xff"  # as file names have bytes
    assert not (tmp_path / "threshold.csv").exists()


# -- mistakes ------------------------------------------------------------------------------


def no_such_model(folder: Path) -> list[str]:
    return ["--model", "nowhere.pt"]


def no_pairs(folder: Path) -> list[str]:
    shutil.rmtree(folder / "masks")
    (folder / "masks").mkdir()
    return GIVEN


def unknown_value(folder: Path) -> list[str]:
    Image.fromarray(np.full((32, 40), 7, np.uint8)).save(folder / "masks" / "cx.png")
    return GIVEN


def unknown_colour(folder: Path) -> list[str]:
    Image.new("RGB", (40, 32), "#0000ff").save(folder / "masks" / "cx.png")
    return GIVEN


def other_channels(folder: Path) -> list[str]:
    (folder / "imgs" / "cx.png").unlink()
    bands = np.zeros((32, 40, 6), np.uint8)
    tifffile.imwrite(
        folder / "imgs" / "cx.tif", bands, planarconfig="contig", photometric="minisblack"
    )
    return GIVEN


def other_size(folder: Path) -> list[str]:
    Image.new("L", (41, 32)).save(folder / "masks" / "cx.png")
    return GIVEN


def not_writable(folder: Path) -> list[str]:
    (folder / "file").write_text("a file")
    return ["--output", "file/results"]


def no_labels(folder: Path) -> list[str]:
    torch.save({"layer.weight": torch.zeros(3, 3)}, folder / "other.pt")
    return ["--model", "other.pt", *GIVEN]


def images_not_known(folder: Path) -> list[str]:
    content = checkpoint.load(folder / "checkpoints" / "best.pt")
    torch.save(content["model"], folder / "plain.pth")
    return ["--model", "plain.pth"]


def images_gone(folder: Path) -> list[str]:
    shutil.rmtree(folder / "imgs")
    return []


def other_split(folder: Path) -> list[str]:
    change(folder, names="those of another split")
    return []


def threshold_of_three_classes(folder: Path) -> list[str]:
    architecture = choose_architecture("unet", None, channels=3, num_classes=3, width=2)
    change(
        folder,
        model=build_network(architecture).state_dict(),
        architecture=architecture.to_dict(),
        labels=Labels((0, 1, 255)).to_dict(),
        threshold=None,
    )
    return [*GIVEN, "--threshold", "0.5"]


def soft_masks(folder: Path) -> list[str]:
    """Masks of 0 and 1, for a network of --mask-threshold 127."""
    change(folder, labels=Labels((0, 255), threshold=127).to_dict())
    for path in (folder / "masks").iterdir():
        Image.fromarray(np.eye(32, 40, dtype=np.uint8)).save(path)
    return GIVEN


def test_masks_of_one_class_and_void_are_scored(here: Path) -> None:
    """They are on one side of the network's threshold, as images without an object may be."""
    change(here, labels=Labels((0, 254), threshold=127, ignore=255).to_dict())
    for path in (here / "masks").iterdir():
        Image.fromarray(255 * np.eye(32, 40, dtype=np.uint8)).save(path)
    scores = [row["recall"] for row in run(*GIVEN)["classes"]]
    assert scores == [0, None]  # no pixel is of the second class


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("argv", [GIVEN, []], ids=["given", "of_the_run"])
def test_masks_that_another_program_saved_in_colour_are_scored_as_before(
    here: Path, mode: str, argv: list[str]
) -> None:
    grey = run(*argv)
    for path in (here / "masks").iterdir():
        with Image.open(path) as image:
            image.convert(mode).save(path)
    assert run(*argv, "--overwrite")["classes"] == grey["classes"]


def test_a_class_that_is_predicted_but_in_no_mask_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its Dice of 0 may be of masks of another kind: all black, or of other values near black."""
    run(*GIVEN)
    assert "in no mask" not in capsys.readouterr().out
    for path in (here / "masks").iterdir():
        Image.fromarray(np.zeros((32, 40), np.uint8)).save(path)
    assert run(*GIVEN, "--overwrite")["classes"][1]["predicted_pixels"] > 0
    assert "in no mask, but predicted: 255;" in capsys.readouterr().out


def soft_masks_with_void(folder: Path) -> list[str]:
    """Masks of 0 and 1, and of 255 as void, for the same network: void is no side."""
    argv = soft_masks(folder)
    change(folder, labels=Labels((0, 254), threshold=127, ignore=255).to_dict())
    for path in (folder / "masks").iterdir():
        mask = np.eye(32, 40, dtype=np.uint8)
        mask[0] = 255
        Image.fromarray(mask).save(path)
    return argv


MISTAKES: list[tuple[Callable[[Path], list[str]], list[str]]] = [
    (no_such_model, ["nowhere.pt"]),
    (no_pairs, ["masks", "no masks"]),
    (unknown_value, ["cx.png", "mask value 7", "0, 255"]),
    (unknown_colour, ["cx.png: unknown mask colour #0000ff; expected #000000, #ffffff"]),
    (other_channels, ["cx.tif", "6 channels", "takes 3"]),
    (other_size, ["cx.png is 41x32, its image 40x32"]),
    (not_writable, ["file/results", "--output"]),
    (lambda folder: ["--output", "s3://bucket/x"], ["--output s3://bucket/x: is an address"]),
    (no_labels, ["other.pt", "classic U-Net"]),
    (images_not_known, ["plain.pth", "use --images and --masks"]),
    (images_gone, ["imgs", "use --images and --masks"]),
    (soft_masks, ["masks/", "one side of --mask-threshold 127", "are 0 to 1)"]),
    (soft_masks_with_void, ["masks/", "one side of --mask-threshold 127", "are 0 to 1)"]),
    (other_split, ["split", "use --images and --masks"]),
    (threshold_of_three_classes, ["--threshold 0.5", "best.pt has 3"]),
]


@pytest.mark.parametrize(("mistake", "parts"), MISTAKES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_mistake_is_one_error_and_nothing_is_written(
    here: Path, mistake: Callable[[Path], list[str]], parts: list[str]
) -> None:
    argv = mistake(here)
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    with pytest.raises(UserError) as caught:
        run(*argv)
    for part in parts:
        assert part in str(caught.value)
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*")} == before


# -- on ranks, of a real run ---------------------------------------------------------------

FLAGS = ["--width", "2", "--epochs", "2", "--batch-size", "2", "--workers", "0", "--lr", "0.01"]


@pytest.fixture(scope="module")
def trained(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with imgs, masks and a run's checkpoints, 5 of its 10 images for validation."""
    folder = make_set(tmp_path_factory.mktemp("run"), 10, size=(32, 40))
    argv = [*data_flags(folder), *FLAGS, "--scale", "0.5", "--validation", "50"]
    status, _, err = ranks.run(1, call_train, argv, str(folder))[0]
    assert (status, err) == (0, "")
    return folder


def call_whole(argv: list[str], folder: str) -> tuple[int, str, str]:
    return call_main("unet_ddp.__main__", argv, folder)


def call_in_windows(argv: list[str], folder: str) -> tuple[int, str, str]:
    """A machine whose memory no image fits into: images of 16 x 20 in windows of 16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unet_ddp.prediction.predictor.TILE", 16)
        patch.setattr("unet_ddp.prediction.predictor.total_memory", lambda device: 0)
        patch.setattr("unet_ddp.evaluation.scoring.AT_ONCE", 100)
        return call_main("unet_ddp.__main__", argv, folder)


@pytest.mark.parametrize("many", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_files_are_identical_on_any_number_of_ranks(
    ranks: Ranks, trained: Path, tmp_path: Path, many: int
) -> None:
    """5 images, which neither 2 nor 3 divides; seen whole, and in windows."""
    contents: dict[str, dict[str, bytes]] = {}
    for kind, job in (("whole", call_whole), ("windows", call_in_windows)):
        for size in (1, many):
            output = tmp_path / kind / str(size)
            argv = ["evaluate", "--workers", "0", "-o", str(output)]
            outcomes = ranks.run(size, job, argv, str(trained))
            assert [(status, err) for status, _, err in outcomes] == [(0, "")] * size, outcomes
            assert all(out == "" for _, out, _ in outcomes[1:])
            found = {path.name: path.read_bytes() for path in output.iterdir()}
            assert contents.setdefault(kind, found) == found
            assert set(found) == set(EVALUATION_FILES) and all(found.values())
    assert contents["whole"]["calibration.csv"] != contents["windows"]["calibration.csv"]
    scores = json.loads(contents["whole"]["scores.json"])
    best = checkpoint.load(trained / "checkpoints" / "best.pt")
    assert scores["dice_as_trained"] == best["best"]["dice"]
    assert scores["threshold"] == best["threshold"]
    rows = list(csv.DictReader(contents["whole"]["per_image.csv"].decode().splitlines()))
    assert [row["image"] for row in rows] == sorted(row["image"] for row in rows)


@pytest.mark.thorough
def test_in_the_cpus_own_bfloat16_too(tmp_path: Path) -> None:
    """Scores to the last digit those of training, masks the same, on 1, 2 and 3 ranks."""
    folder, pool = make_set(tmp_path, 10, size=(32, 40)), Ranks(3)
    written: dict[str, dict[str, bytes]] = {}
    predict = ["imgs", "--probabilities", "npy", "-o"]
    try:
        pool.run(3, jobs.use_all_instructions)
        if not pool.run(1, is_faster_in_bfloat16)[0]:
            pytest.skip("this CPU is not faster in bfloat16")
        argv = [*data_flags(folder), *FLAGS, "--validation", "50"]
        assert pool.run(1, call_train, argv, str(folder))[0][0] == 0
        for name, size, flags in (
            ("1", 1, []),
            ("2", 2, []),
            ("3", 3, []),
            ("32", 1, ["--precision", "float32"]),
        ):
            argv = ["evaluate", "--workers", "0", "-o", f"out/{name}", *flags]
            outcomes = pool.run(size, call_main, "unet_ddp.__main__", argv, str(folder))
            assert [status for status, _, _ in outcomes] == [0] * size, outcomes
            assert ("in bfloat16, as it was trained" in outcomes[0][1]) == (not flags)
            outcomes = pool.run(
                size, call_main, "predict", [*predict, f"out/{name}", *flags], str(folder)
            )
            assert [status for status, _, _ in outcomes] == [0] * size, outcomes
            files = sorted((folder / "out" / name).iterdir())
            written[name] = {path.name: path.read_bytes() for path in files}
    finally:
        pool.close()
    assert written["1"] == written["2"] == written["3"]
    scores = json.loads(written["1"]["scores.json"])
    best = checkpoint.load(folder / "checkpoints" / "best.pt")
    assert scores["dice_as_trained"] == best["best"]["dice"]
    probabilities = [name for name in written["1"] if name.endswith(".npy")]
    assert len(probabilities) == 10
    assert all(written["1"][name] != written["32"][name] for name in probabilities)


@pytest.mark.parametrize("mistake", [unknown_value, not_writable])
def test_a_mistake_is_said_once_for_all_ranks(
    ranks: Ranks, trained: Path, tmp_path: Path, mistake: Callable[[Path], list[str]]
) -> None:
    """On one rank while it scores, on the main one before."""
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    argv = ["evaluate", "--workers", "0", *mistake(folder)]
    outcomes = ranks.run(2, call_main, "unet_ddp.__main__", argv, str(folder))
    assert [status for status, _, _ in outcomes] == [2, 2], outcomes
    lines = "".join(err for _, _, err in outcomes).splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), lines
