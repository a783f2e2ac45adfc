"""The doctor finds everything in one pass, raises no false alarm, and says what a run will cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import data_flags, make_pair, make_set
from tests.data.checks.catalogue import cut, image, listing, mask, masks_as, pixels
from unet_ddp.__main__ import main

SMALL = ["--width", "2", "--batch-size", "1"]


def examine(
    folder: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict[str, Any]]:
    """Status, and what was found."""
    status = main(["doctor", *data_flags(folder), *SMALL, "--json", *words])
    return status, json.loads(capsys.readouterr().out)


def test_a_sound_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path, 6)
    status, found = examine(tmp_path, capsys, "--figure", str(tmp_path / "grid.png"))
    assert status == 0
    assert found["verdict"] == "sound" and found["problems"] == found["warnings"] == []
    assert found["images"]["sizes"] == [[32, 24, 6]]
    assert {row["value"] for row in found["masks"]["values"]} == {"0", "255"}
    assert sum(row["share"] for row in found["masks"]["values"]) == pytest.approx(1)
    assert found["cost"]["bytes"] > 16 * found["cost"]["parameters"] > 0
    with Image.open(tmp_path / "grid.png") as picture:
        assert picture.width > 3 * 2 * 32 and picture.height > 24
    status = main(["doctor", *data_flags(tmp_path), *SMALL, "--figure", str(tmp_path / "grid.png")])
    assert status == 2 and "not there yet" in capsys.readouterr().err


def test_all_faults_in_one_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each planted fault is named, and no sound file is."""
    make_set(tmp_path, 12)
    cut(image(tmp_path, "ax"))
    mask(tmp_path, "bx").unlink()
    Image.new("L", (33, 24)).save(mask(tmp_path, "cx"))
    Image.open(image(tmp_path, "dx")).save(image(tmp_path, "dx").with_suffix(".bmp"))
    mask(tmp_path, "ex").write_bytes(b"")
    Image.fromarray(np.zeros((24, 32), np.uint16)).save(image(tmp_path, "fx"))
    image(tmp_path, "gx").unlink()
    status, found = examine(tmp_path, capsys)
    assert status == 2 and found["verdict"] == "unfit"
    told = "\n".join(found["problems"])
    assert len(found["problems"]) == 6, told
    for name in ("ax", "bx", "cx", "dx", "ex", "fx"):
        assert f"{name}." in told
    for name in ("hx", "ix", "jx", "kx", "lx"):
        assert told.count(f"{name}.") <= 1  # as the example of what most files are
    assert len(found["orphan_masks"]) == 1 and "gx" in found["orphan_masks"][0]


def test_train_stops_at_what_the_doctor_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import train

    make_set(tmp_path, 6)
    cut(image(tmp_path))
    _, found = examine(tmp_path, capsys)
    with pytest.raises(SystemExit) as stop:
        train.main([*data_flags(tmp_path), *SMALL, "--checkpoints", str(tmp_path / "run")])
    assert stop.value.code == 2
    assert found["problems"][0] in capsys.readouterr().err


def test_warnings_fail_only_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path, 6)
    Image.new("RGB", (32, 24), (7, 7, 7)).save(image(tmp_path))
    assert examine(tmp_path, capsys)[0] == 0
    status, found = examine(tmp_path, capsys, "--strict")
    assert status == 1
    assert len(found["warnings"]) == 1 and "cx.png" in found["warnings"][0]


def test_copies_are_found_across_the_split_and_neighbours_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy that was scaled and compressed again; and a scene that merely looks alike."""
    numbers = np.random.default_rng(3)
    scene = np.kron(numbers.integers(0, 255, (6, 8, 3)), np.ones((16, 16, 1))).astype(np.uint8)
    for name in "abcdefgh":
        make_pair(tmp_path, f"{name}x", size=(96, 128))
    other = scene.copy()
    other[:48, :64] = 255 - other[:48, :64]
    Image.fromarray(scene).save(image(tmp_path, "ax"))
    Image.fromarray(other).save(image(tmp_path, "bx"))
    again = Image.fromarray(scene).resize((64, 48)).resize((128, 96))
    image(tmp_path, "hx").unlink()
    again.save(image(tmp_path, "hx").with_suffix(".jpg"), quality=70)
    listing()(tmp_path)
    rows = (tmp_path / "pairs.csv").read_text().replace("imgs/hx.png", "imgs/hx.jpg")
    (tmp_path / "pairs.csv").write_text(rows)
    status = main(["doctor", "--list", str(tmp_path / "pairs.csv"), *SMALL, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert status == 0
    assert [[Path(p).stem for p in both] for both in found["copies"]] == [["hx", "ax"]]


def test_weights_balance_the_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weight times share is the same for all classes: the median share."""
    make_set(tmp_path, 6)
    masks_as(lambda a: np.where(np.arange(32) < 5, 9, a).astype(np.uint8))(tmp_path)
    _, found = examine(tmp_path, capsys, "--class-names", "ground", "edge", "square")
    products = [row["training_share"] * row["suggested_weight"] for row in found["classes"]]
    assert products == pytest.approx([products[0]] * 3, rel=0.01)
    assert [row["name"] for row in found["classes"]] == ["ground", "edge", "square"]
    for row in found["classes"]:
        assert 0 < row["validation_share"] < 1
    assert sum(row["training_share"] for row in found["classes"]) == pytest.approx(1)
    shares = [pixels(path) for path in sorted((tmp_path / "masks").iterdir())]
    assert found["masks"]["values"][0]["share"] == pytest.approx(np.mean(np.stack(shares) == 0))
