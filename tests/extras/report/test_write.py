"""report.html and samples.png in the folder of a run."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from shlex import quote
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from tests.conftest import make_set
from tests.evaluation.examples import CPU
from tests.extras.report.test_page import Parsed
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.config import LaunchConfig, RunConfig, TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.splits import Split
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError
from unet_ddp.evaluation.results import COLUMNS
from unet_ddp.extras.report import write
from unet_ddp.extras.report.write import write_report, write_reports, write_samples
from unet_ddp.network.architecture import build_network, choose_architecture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder with all that the report reads."""
    torch.manual_seed(1)
    architecture = choose_architecture("unet", None, channels=3, num_classes=2, width=2)
    content = {
        "model": build_network(architecture).state_dict(),
        "architecture": architecture.to_dict(),
        "labels": Labels((0, 255)).to_dict(),
        "preprocessing": Preprocessing.for_images(3, scale=1).to_dict(),
        "best": {"score": 0.75, "name": "Dice", "dice": 0.75, "epoch": 1, "improved": 1},
        "config": {"resize_masks": True},
    }
    folder = tmp_path / "my run"
    folder.mkdir()
    checkpoint.save(folder / "best.pt", content)
    with (folder / "metrics.csv").open("w", encoding="utf-8") as file:
        csv.writer(file).writerows([["epoch", "loss"], [1, 1.5], [2, 1.0], [3, 0.5]])
    (folder / "config.yaml").write_text(yaml.safe_dump({"epochs": 3}), encoding="utf-8")
    return folder


@pytest.fixture
def pairs(tmp_path: Path) -> list[Pair]:
    """Nine pairs, one of them with a mask of another size."""
    make_set(tmp_path, 9)
    mask = tmp_path / "masks" / "ax.png"
    Image.open(mask).resize((64, 48), Image.Resampling.NEAREST).save(mask)
    return find_pairs(tmp_path / "imgs", tmp_path / "masks")


def prepared(pairs: Pairs) -> PreparedData:
    """Data to validate on alone."""
    labels, form = Labels((0, 255)), ImageFormat(3, "uint8")
    return PreparedData(Split(Pairs(), pairs, ""), labels, form, None, (24, 32), [])


def test_a_report_has_what_the_run_has(folder: Path, pairs: list[Pair]) -> None:
    path = write_report(folder, pairs, World(), notes=["a note"], workers=0)
    assert path == folder / "report.html"
    page = Parsed(path.read_text(encoding="utf-8"))
    assert page.texts_of("h1") == ["my run"]
    facts = dict(zip(page.texts_of("dt"), page.texts_of("dd"), strict=True))
    assert facts["validation Dice"] == "0.7500 (epoch 2 of 3)"
    assert facts["network"].startswith("classic U-Net of width 2") and "Dice" not in facts
    assert set(facts) == {
        "validation Dice", "IoU", "calibration error", "best threshold", "network",
    }  # fmt: skip
    assert "a note" in page.texts_of("p") and "Loss" in page.texts_of("h3")
    assert any(
        text.startswith("Over 9 images at the network's scale") for text in page.texts_of("p")
    )
    assert len([attrs for attrs in page.all("li") if attrs.get("class") == "card"]) == 9
    assert page.texts_of("td")[-1] == "3"
    start = {"date": "2026-11-27", "command": "train.py <b>", "folder": "/home", "unet_ddp": "0.1.0",
             "host": "one", "processes": 2, "gpu": None, "commit": "a" * 40, "has_changes": True,
             "packages": {"torch": "2.15.0"}, "tracked": {}, "step": 7,
             "end": {"state": "failed", "date": "2026-11-28", "error": "disk full"}}  # fmt: skip
    data = {"training": 5, "validation": 2, "fingerprint": "f00"}
    record = {"format": 1, "starts": [start], "settings": {"images": "/imgs"}, "data": data}
    (folder / "run.json").write_text(json.dumps(record))
    write_report(folder, pairs, World(), notes=["a note"], workers=0)
    page = Parsed(path.read_text(encoding="utf-8"))
    assert page.texts_of("td")[-7:-1] == [
        "2026-11-27, failed 2026-11-28 disk full", "train.py <b>, in /home",
        f"unet_ddp 0.1.0, commit {'a' * 12}+, torch 2.15.0", "one, 2 x CPU",
        "/imgs, 5 images to train on, 2 to validate", "f00",
    ]  # fmt: skip
    assert "resumed after step 7" in page.texts_of("th")
    first = path.read_bytes()
    write_report(folder, pairs, World(), notes=["a note"], workers=0)
    assert path.read_bytes() == first


def test_the_scores_are_those_at_the_threshold_of_predictions(
    folder: Path, pairs: list[Pair]
) -> None:
    """Beside the validation Dice at the threshold stood the IoU at 0.5: a pair that no masks can have."""
    content = checkpoint.load(folder / "best.pt")
    checkpoint.save(folder / "best.pt", {**content, "threshold": 0.25})
    text = write_report(folder, pairs, World(), workers=0).read_text(encoding="utf-8")
    page = Parsed(text)
    assert any("foreground from probability 0.250 on" in text for text in page.texts_of("p"))
    facts = dict(zip(page.texts_of("dt"), page.texts_of("dd"), strict=True))
    dice, iou = map(float, page.texts_of("td")[len(COLUMNS) + 1 :][:2])  # of the foreground
    assert f"{iou:.4f}" == facts["IoU"] and iou == pytest.approx(dice / (2 - dice), abs=1e-4)


def test_without_images_or_a_network_it_has_the_curves(folder: Path, pairs: list[Pair]) -> None:
    page = Parsed(write_report(folder, Pairs(), World()).read_text(encoding="utf-8"))
    assert page.texts_of("h2") == ["Epochs", "Configuration"]
    assert page.texts_of("dd")[0] == "0.7500 (epoch 2 of 3)"
    for name in ("best.pt", "config.yaml"):
        (folder / name).unlink()
    page = Parsed(write_report(folder, pairs, World()).read_text(encoding="utf-8"))
    assert page.texts_of("h2") == ["Epochs"] and not page.texts_of("dd")


def test_a_configuration_that_no_run_wrote_is_refused(folder: Path) -> None:
    path = folder / "config.yaml"
    laughs = "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 9))
    for text in (f"a0: &a0 x\n{laughs}", "[" * 3000, "a: " + "9" * 5000, "\0"):
        path.write_text(text)
        with pytest.raises(UserError, match=rf"^{re.escape(str(path))}: .{{,200}}$"):
            write_report(folder, Pairs(), World())


def test_without_metrics_the_epochs_are_not_counted(folder: Path) -> None:
    (folder / "metrics.csv").unlink()
    page = Parsed(write_report(folder, Pairs(), World()).read_text(encoding="utf-8"))
    assert page.texts_of("dd")[0] == "0.7500 (epoch 2)" and page.texts_of("h2") == ["Configuration"]


def test_samples_show_image_truth_and_prediction(folder: Path, pairs: list[Pair]) -> None:
    path = folder / "samples.png"
    lines = write_samples(folder, pairs, CPU)  # the first mask is resized, as in the run
    assert len(lines) == 2 and str(path) in lines[1]
    picture = np.asarray(Image.open(path))
    assert picture.shape == (4 * 24 + 3 * 4, 3 * 32 + 2 * 4, 3)  # 4 pixels between pictures
    for row, pair in enumerate(pairs[:8:2]):  # 4 of the 9, from the first on
        assert (picture[28 * row :][:24, :32] == np.asarray(Image.open(pair.image))).all()
    write_samples(folder, pairs[:3], CPU)
    assert len(np.asarray(Image.open(path))) == 3 * 24 + 2 * 4
    assert write_samples(folder, Pairs(), CPU) == []
    (folder / "best.pt").unlink()
    assert write_samples(folder, pairs, CPU) == []


def test_a_best_network_that_no_run_wrote_is_a_warning_at_the_end_of_a_run(
    folder: Path, pairs: list[Pair]
) -> None:
    content = checkpoint.load(folder / "best.pt")
    del content["best"]
    checkpoint.save(folder / "best.pt", content)
    log: list[str] = []
    config = TrainConfig(run=RunConfig(checkpoints=str(folder)), launch=LaunchConfig(workers=0))
    write_reports(config, prepared(pairs[1:]), World(), log.append)
    assert len(log) == 1 and "best.pt: is not the best.pt of a run; write it later" in log[0]
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("stage", ["write_samples", "score_pairs", "make_gallery", "render"])
@pytest.mark.parametrize(
    "error",
    [
        OSError("matplotlib requires access to a writable cache directory"),
        RunError("a reading process died"),
        ImportError("no matplotlib"),
        ZeroDivisionError("a fault of ours"),
    ],
)
def test_whatever_fails_in_a_report_is_a_warning_at_the_end_of_a_run(
    folder: Path, pairs: list[Pair], stage: str, error: Exception, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    log: list[str] = []
    config = TrainConfig(run=RunConfig(checkpoints=str(folder)), launch=LaunchConfig(workers=0))
    monkeypatch.setattr(write, stage, Mock(side_effect=error))
    write_reports(config, prepared(pairs[1:]), World(), log.append)
    assert log[-1].startswith(f"warning: no report: {error}; write it later with")
    assert ("Traceback" in capfd.readouterr().err) == isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize("name", ["report.html", "samples.png"])
def test_a_file_that_cannot_be_written_is_a_warning_at_the_end_of_a_run(
    folder: Path, pairs: list[Pair], name: str
) -> None:
    log: list[str] = []
    run, launch = RunConfig(checkpoints=str(folder)), LaunchConfig(workers=0)
    config = TrainConfig(run=run, launch=launch)
    write_reports(config, prepared(pairs[1:]), World(), log.append)
    best = folder / "best.pt"
    assert log == [
        f"best: epoch 2, validation Dice 0.7500; {best}",
        f"samples: {folder / 'samples.png'} (image, truth, prediction)",
        f"report: {folder / 'report.html'}",
    ]
    (folder / name).unlink()
    (folder / name).mkdir()  # in the way
    with pytest.raises(UserError, match=name):
        if name == "report.html":
            write_report(folder, Pairs(), World())
        else:
            write_samples(folder, pairs[1:], CPU)
    log.clear()
    write_reports(config, prepared(pairs[1:]), World(), log.append)
    assert log[-1].startswith("warning: ") and name in log[-1]
    assert log[-1].endswith(f"write it later with python -m unet_ddp report {quote(str(folder))}")


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("metrics.csv", b"epoch,loss\n1,\xff\n", "corrupt (a CSV file)"),
        ("metrics.csv", b"epoch,loss\n1,2,3\n", "a row has more cells than there are columns"),
        ("metrics.csv", b"epoch\n" + b"x" * 200_000, "field larger than field limit"),
        ("config.yaml", b"epochs: %", "found character '%'"),
        ("config.yaml", b"\xff", "line 1 is not UTF-8 text"),
        ("config.yaml", b"[" * 9000, "plain values and lists"),
        ("config.yaml", b"seed: " + b"9" * 5000, "a value that is no number, text or date"),
        ("config.yaml", b"day: 2026-99-99", "a value that is no number, text or date"),
        ("config.yaml", b"- 1", "settings are lines of 'name: value'"),
    ],
)
def test_corrupt_files_of_a_run_are_one_line(
    folder: Path, name: str, data: bytes, why: str
) -> None:
    (folder / name).write_bytes(data)
    with pytest.raises(UserError) as caught:
        write_report(folder, Pairs(), World())
    assert name in str(caught.value) and why in str(caught.value)
    assert not (folder / "report.html").exists()


def test_settings_are_shown_as_they_are_written(folder: Path) -> None:
    (folder / "config.yaml").write_text("learning_rate: 1e-3\ncrop_size: [128, 0x40]\n")
    write_report(folder, Pairs(), World())
    page = Parsed((folder / "report.html").read_text())
    assert page.texts_of("td") == ["1e-3", "[128, 0x40]"]


@pytest.mark.parametrize("name", ["metrics.csv", "config.yaml"])
def test_a_pipe_among_the_files_of_a_run_is_not_opened(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(UserError, match=name):
        write_report(folder, Pairs(), World())
