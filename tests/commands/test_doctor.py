"""The doctor finds everything in one pass and raises no false alarm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import data_flags, make_pair, make_set
from tests.data.checks.catalogue import (
    colours,
    cut,
    each,
    image,
    listing,
    mask,
    masks_as,
    pixels,
    with_palette,
)
from unet_ddp.__main__ import main
from unet_ddp.commands.doctor import format_findings

SMALL = ["--width", "2", "--batch-size", "1"]


def examine(
    folder: Path, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[int, dict[str, Any]]:
    """Status, and what was found."""
    status = main(["doctor", *data_flags(folder), *SMALL, "--json", *flags])
    return status, json.loads(capsys.readouterr().out)


def test_a_good_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path, 6)
    status, found = examine(tmp_path, capsys)
    assert status == 0
    assert found["verdict"] == "ok" and found["problems"] == found["warnings"] == []
    assert found["images"] == {
        "count": 6, "sizes": [[32, 24, 6]], "formats": {".png": 6}, "channels": {"3": 6},
        "types": {"uint8": 6}, "with_alpha": 0,
    }  # fmt: skip
    assert found["masks"]["formats"] == {".png": 6} and found["masks"]["kind"] == "grey"
    objects = 6 * 9 * 9 / (6 * 24 * 32)  # a square of 9 pixels in each
    assert found["masks"]["values"] == [
        {"value": "0", "share": pytest.approx(1 - objects)},
        {"value": "255", "share": pytest.approx(objects)},
    ]
    assert found["split"]["training"] == 5 and found["split"]["validation"] == 1
    assert found["split"]["groups"] == [[name, 1] for name, _ in found["split"]["groups"]]
    assert found["orphan_masks"] == found["copies"] == []


def test_kinds_and_sizes_are_counted_the_commonest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_set(tmp_path, 5, mask_ending=".bmp")
    make_pair(tmp_path, "zx", size=(40, 50), image_ending=".bmp")
    Image.fromarray(pixels(image(tmp_path, "ax"))[..., 0]).save(image(tmp_path, "ax"))
    rgba = np.dstack([pixels(image(tmp_path, "bx")), np.full((24, 32), 9, np.uint8)])
    Image.fromarray(rgba).save(image(tmp_path, "bx"))
    _, found = examine(tmp_path, capsys)
    assert found["images"]["sizes"] == [[32, 24, 5], [50, 40, 1]]
    assert found["images"]["formats"] == {".png": 5, ".bmp": 1}
    assert found["images"]["channels"] == {"3": 5, "1": 1} and found["images"]["with_alpha"] == 1
    assert found["masks"]["formats"] == {".bmp": 5, ".png": 1}
    for change, kind in ((colours, "colour"), (with_palette, "palette")):
        folder = tmp_path / kind
        make_set(folder, 6)
        each(
            folder,
            "masks",
            change if kind == "palette" else lambda p, a: Image.fromarray(colours(a)).save(p),
        )
        _, found = examine(folder, capsys)
        assert found["masks"]["kind"] == kind
        values = [row["value"] for row in found["masks"]["values"]]
        assert values == (["#000080", "#ff0000"] if kind == "colour" else ["0", "1"])


def test_the_figure_shows_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path, 14)
    figure = tmp_path / "grid.png"
    flags = [*SMALL, "--augmentation", "none"]
    assert main(["doctor", *data_flags(tmp_path), *flags, "--figure", str(figure)]) == 0
    said = capsys.readouterr().out
    assert said.endswith(
        f"{figure}: samples as the network sees them, plain and with their masks\n"
    )
    with Image.open(figure) as picture:  # 12 samples in 4 rows of 3, each plain and with its mask
        assert picture.size == (6 * 32 + 5 * 4, 4 * 24 + 3 * 4)
        first = np.asarray(picture)[:24, :32]
    split = [
        path for path in sorted((tmp_path / "imgs").iterdir()) if (pixels(path) == first).all()
    ]
    assert len(split) == 1
    for path in (figure, tmp_path / "grid.jpg"):  # exists; another format
        assert main(["doctor", *data_flags(tmp_path), *SMALL, "--figure", str(path)]) == 2
        assert capsys.readouterr().err == f"error: --figure {path}: must be a new PNG file\n"
    path = tmp_path / "imgs" / "ax.png" / "grid.png"
    assert main(["doctor", *data_flags(tmp_path), *SMALL, "--figure", str(path)]) == 2
    assert "can't be written" in capsys.readouterr().err
    cut(image(tmp_path))
    path = tmp_path / "new.png"
    assert main(["doctor", *data_flags(tmp_path), *SMALL, "--figure", str(path)]) == 2
    assert not path.exists()


def test_lines_for_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for group in "abc":
        for view in range(2):
            make_pair(tmp_path, f"{group}z_{view}")
    masks_as(lambda a: np.where(a > 0, 255, 0).astype(np.uint8))(tmp_path)
    flags = [*SMALL, "--class-names", "ground", "square", "--validation", "35"]
    assert main(["doctor", *data_flags(tmp_path), *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:5] == [
        "images: 6 .png; 6 of 32x24",
        "masks: 6 .png; grey, values 0 (89.45%), 255 (10.55%)",
    ]
    assert lines[5:] == [
        "",
        "class  name    mask value  of training  of validation  balancing weight",
        "0      ground  0           89.45%       89.45%         0.559",
        "1      square  255         10.55%       10.55%         4.741",
        "groups: az (2), bz (2), cz (2)",
        "",
        "ok: ready to train",
    ]


def test_long_lists_are_cut_for_a_terminal() -> None:
    findings = {
        "verdict": "unfit",
        "problems": [f"p{k}" for k in range(21)],
        "warnings": [f"w{k}" for k in range(20)],
        "notes": ["note"],
        "images": {"formats": {f".{k}": 2 for k in range(7)}, "sizes": [[k, 9, 1] for k in range(6)]},
        "masks": {"formats": {".png": 3}, "kind": "grey",
                  "values": [{"value": str(k), "share": 0.5} for k in range(14)]},
        "split": {"training": 8, "validation": 2, "groups": [(f"g{k}", 1) for k in range(9)]},
    }  # fmt: skip
    lines = format_findings(findings)
    assert lines[0] == "note"
    assert lines[1].startswith("images: 2 .0, 2 .1, 2 .2, 2 .3, 2 .4, 2 .5 and 1 more; 1 of 0x9")
    assert lines[1].endswith("1 of 5x9")
    assert lines[2].endswith("11 (50.00%) and 2 more")
    assert (
        lines[3]
        == "groups: g0 (1), g1 (1), g2 (1), g3 (1), g4 (1), g5 (1), g6 (1), g7 (1) and 1 more"
    )
    assert lines[5:26] == [
        *(f"error: p{k}" for k in range(20)),
        "error: and 1 more; --json lists all",
    ]
    assert lines[26:-1] == [f"warning: w{k}" for k in range(20)]
    assert lines[-1] == "unfit to train: 21 problem(s)"
    findings |= {
        "verdict": "warnings",
        "problems": [],
        "split": {"training": 8, "validation": 1, "groups": [("g", 1)] * 9},
    }
    lines = format_findings(findings)
    assert lines[-1] == "ready to train, with 20 warning(s)"
    assert not any(line.startswith("groups") for line in lines)  # each image by itself


def test_settings_that_do_not_fit_the_set_are_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_set(tmp_path, 6)
    flags = ["--batch-size", "3", "--accumulate", "2", "--class-weights", "1", "2", "3"]
    status, found = examine(tmp_path, capsys, *flags)
    assert status == 2 and len(found["problems"]) == 2
    assert "3 weights for 2 classes" in found["problems"][0]
    assert "6 images" in found["problems"][1]
    assert "classes" not in found and found["split"]["training"] == 5
    for size in ("5", "auto"):
        assert examine(tmp_path, capsys, "--batch-size", size)[0] == 0


def test_bad_files_may_be_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path, 6)
    cut(image(tmp_path))
    status, found = examine(tmp_path, capsys, "--skip-bad-files", "1")
    assert status == 0 and found["verdict"] == "warnings"
    assert (
        found["split"]["training"] + found["split"]["validation"] == found["images"]["count"] == 5
    )


def test_a_folder_without_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "imgs").mkdir()
    (tmp_path / "masks").mkdir()
    status, found = examine(tmp_path, capsys)
    assert status == 2 and len(found["problems"]) == 1
    assert set(found) == {"verdict", "problems", "warnings", "notes", "orphan_masks"}
    assert main(["doctor", *data_flags(tmp_path)]) == 2
    assert capsys.readouterr().out.splitlines()[-1] == "unfit to train: 1 problem(s)"


def test_all_faults_in_one_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each planted fault is named, and no good file is."""
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
    said = "\n".join(found["problems"])
    assert len(found["problems"]) == 6, said
    for name in ("ax", "bx", "cx", "dx", "ex", "fx"):
        assert f"{name}." in said
    for name in ("hx", "ix", "jx", "kx", "lx"):
        assert said.count(f"{name}.") <= 1  # as the example of what most files are
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
