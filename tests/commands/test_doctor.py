"""The doctor finds everything in one pass and raises no false alarm."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.checks.catalogue import (
    colours,
    cut,
    each,
    image,
    mask,
    masks_as,
    pixels,
    with_palette,
)
from tests.conftest import data_flags, make_pair, make_set
from unet_ddp.__main__ import main
from unet_ddp.cli import parse_train
from unet_ddp.commands.doctor import format_findings
from unet_ddp.config import TrainConfig
from unet_ddp.data.matching import Report
from unet_ddp.errors import how_to_install
from unet_ddp.extras.transfer.pretrained import find_packaged
from unet_ddp.network.architecture import full_name

SMALL = ["--batch-size", "1"]


def examine(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[str]]:
    """Status, and the lines printed."""
    status = main(["doctor", *data_flags(folder), *SMALL, *flags])
    return status, capsys.readouterr().out.splitlines()


def of_kind(lines: list[str], kind: str) -> list[str]:
    return [line.removeprefix(f"{kind}: ") for line in lines if line.startswith(f"{kind}: ")]


def test_kinds_and_sizes_are_counted_the_commonest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_set(tmp_path, 5, mask_ending=".bmp")
    make_pair(tmp_path, "zx", size=(40, 50), values=(0, 7), image_ending=".bmp")
    Image.fromarray(pixels(image(tmp_path, "ax"))[..., 0]).save(image(tmp_path, "ax"))
    _, lines = examine(tmp_path, capsys)
    assert of_kind(lines, "images") == ["5 .png, 1 .bmp; 5 of 32x24, 1 of 50x40"]
    assert of_kind(lines, "masks") == [
        "5 .bmp, 1 .png; grey, values 0 (91.68%), 255 (6.93%), 7 (1.39%)"
    ]
    for change, kind in ((colours, "colour"), (with_palette, "palette")):
        folder = tmp_path / kind
        make_set(folder, 6)
        each(
            folder,
            "masks",
            change if kind == "palette" else lambda p, a: Image.fromarray(colours(a)).save(p),
        )
        (line,) = of_kind(examine(folder, capsys)[1], "masks")
        values = ("#000080", "#ff0000") if kind == "colour" else ("0", "1")
        expected = rf"6 \.png; {kind}, values {values[0]} \(\S+\), {values[1]} \(\S+\)"
        assert re.fullmatch(expected, line), line


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


def test_long_lists_of_kinds_are_cut_and_those_of_problems_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for k in range(9):
        make_pair(tmp_path, f"{chr(97 + k)}z_0", size=(24, 32 + k))
        make_pair(tmp_path, f"{chr(97 + k)}z_1", size=(24, 32 + k))
    _, lines = examine(tmp_path, capsys, "--crop-size", "16", "16")
    assert of_kind(lines, "images")[0].endswith(", 2 of 37x24 and 3 more")
    assert of_kind(lines, "groups")[0].endswith(", hz (2) and 1 more")
    for path in (tmp_path / "imgs").iterdir():
        cut(path)
    make_set(tmp_path, 4)
    status, lines = examine(tmp_path, capsys, "--all")
    assert status == 2 and len(of_kind(lines, "error")) >= 18
    assert lines[-1] == f"unfit to train: {len(of_kind(lines, 'error'))} problems"


def test_of_files_with_the_same_problem_three_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Problems differ in more than names and numbers; four are all named, as a count takes a line, too."""
    make_set(tmp_path, 16)
    names = sorted(path.name for path in (tmp_path / "imgs").iterdir())
    for k, name in enumerate(names[:6]):
        Image.new("RGB", (10 + k, 11)).save(tmp_path / "imgs" / name)
    for name in names[6:10]:
        (tmp_path / "imgs" / name).write_bytes(b"no image")
    for name in names[10:]:
        (tmp_path / "masks" / name).unlink()
    status, lines = examine(tmp_path, capsys)
    errors = of_kind(lines, "error")
    assert status == 2 and lines[-1] == "unfit to train: 16 problems"
    assert [line for line in errors if "more like this" in line] == [
        "3 more like this; doctor --all names them"
    ] * 2
    kinds = [sum(word in line for line in errors) for word in (" is 32x24", "text file", "no mask")]
    assert kinds == [3, 4, 3]
    listed = of_kind(examine(tmp_path, capsys, "--all")[1], "error")
    assert len(listed) == 16 and set(listed) > {line for line in errors if "more like" not in line}


def test_settings_that_do_not_fit_the_set_are_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_set(tmp_path, 6)
    flags = ["--batch-size", "3", "--accumulate", "2", "--class-weights", "1", "2", "3"]
    status, lines = examine(tmp_path, capsys, *flags)
    problems = of_kind(lines, "error")
    assert status == 2 and len(problems) == 2
    assert "3 weights for 2 classes" in problems[0]
    assert "6 images" in problems[1]
    assert not any("balancing weight" in line for line in lines)
    for size in ("5", "auto"):
        assert examine(tmp_path, capsys, "--batch-size", size)[0] == 0


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
    status, lines = examine(tmp_path, capsys)
    said = "\n".join(of_kind(lines, "error"))
    assert status == 2 and lines[-1] == "unfit to train: 6 problems", said
    for name in ("ax", "bx", "cx", "dx", "ex", "fx"):
        assert f"{name}." in said
    for name in ("hx", "ix", "jx", "kx", "lx"):
        assert said.count(f"{name}.") <= 1  # as the example of what most files are
    assert any("gx" in line for line in lines), lines


def test_warnings_fail_only_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path, 6)
    Image.new("RGB", (32, 24), (7, 7, 7)).save(image(tmp_path))
    assert examine(tmp_path, capsys)[0] == 0
    status, lines = examine(tmp_path, capsys, "--strict")
    assert status == 1
    assert len(of_kind(lines, "warning")) == 1 and "cx.png" in of_kind(lines, "warning")[0]


def test_groups_of_one_image_each_are_not_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither where validation has its own folder, whose images are in no group."""
    make_set(tmp_path, 3)
    other = make_set(tmp_path / "other", 2)
    folders = ["--val-images", str(other / "imgs"), "--val-masks", str(other / "masks")]
    for flags in ([], folders):
        status, lines = examine(tmp_path, capsys, *flags)
        assert status == 0 and not of_kind(lines, "groups")


def test_a_table_of_many_classes_is_cut_in_the_middle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of masks with numbered objects it would be longer than the screen, with the findings below it."""
    make_set(tmp_path, 6)
    for count, shown in ((21, [*range(21)]), (40, [*range(19), 38, 39])):
        masks_as(lambda a, n=count: np.arange(a.size, dtype=np.uint8).reshape(a.shape) % n)(
            tmp_path
        )
        _, lines = examine(tmp_path, capsys)
        first = next(k for k, line in enumerate(lines) if line.startswith("class  name")) + 1
        table = lines[first : lines.index("", first)]
        assert [int(line.split()[0]) for line in table if line[0] != "…"] == shown
        assert [line for line in table if line[0] == "…"] == ["… 19 more classes"] * (count > 21)


def test_weights_balance_the_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weight times share is the same for all classes: the median share."""
    make_set(tmp_path, 6)
    masks_as(lambda a: np.where(np.arange(32) < 5, 9, a).astype(np.uint8))(tmp_path)
    _, lines = examine(tmp_path, capsys, "--class-names", "ground", "edge", "square")
    heading = next(k for k, line in enumerate(lines) if line.startswith("class  name"))
    rows = [line.split() for line in lines[heading + 1 : heading + 4]]
    assert [row[:2] for row in rows] == [["0", "ground"], ["1", "edge"], ["2", "square"]]
    training, validation = ([float(row[k].rstrip("%")) for row in rows] for k in (3, 4))
    products = [share * float(row[5]) for share, row in zip(training, rows, strict=True)]
    assert products == pytest.approx([products[0]] * 3, rel=0.01)
    assert all(0 < share < 100 for share in validation)
    assert sum(training) == pytest.approx(100, abs=0.02)


def test_a_recipe_that_does_not_fit_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_set(tmp_path, 5)
    status, lines = examine(tmp_path, capsys, "--config", "carvana")
    (line,) = of_kind(lines, "error")
    assert status == 2 and line.startswith("--group-pattern '")
    assert "; --config carvana sets --group-pattern: give another value on" in line
    assert re.search(r"or delete it in a copy of \S+carvana\.yaml$", line)


def test_few_images_of_a_usual_kind_get_flags_that_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_set(tmp_path, 6, size=(64, 72))
    (note,) = of_kind(examine(tmp_path, capsys)[1], "few images")
    assert note.endswith(", unless --model unet is given")
    flags = note.partition("(")[2].partition(")")[0].split()
    config = parse_train([*data_flags(tmp_path), *flags], prog="train.py", kind=TrainConfig)
    assert config.network.encoder_weights == "imagenet" and find_packaged(
        full_name(config.network.encoder or "")
    )

    monkeypatch.setattr("unet_ddp.extras.transfer.choice.find_packaged", lambda encoder: None)
    (note,) = of_kind(examine(tmp_path, capsys)[1], "few images")
    assert (
        f"; {how_to_install('pretrained')}, and train.py starts from them ({' '.join(flags)})"
        in note
    )
    monkeypatch.setattr(
        "unet_ddp.extras.transfer.choice.FEW_IMAGES", 5
    )  # as many as are trained on
    assert not of_kind(examine(tmp_path, capsys)[1], "few images")


def test_other_images_and_a_chosen_encoder_get_no_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_set(tmp_path, 6, size=(64, 72))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("encoder: resnet18\n")
    for flags in (["--channels", "4"], ["--config", str(recipe)]):
        status, lines = examine(tmp_path, capsys, *flags)
        assert status == 0 and not of_kind(lines, "few images"), flags
    each(
        tmp_path,
        "imgs",
        lambda path, a: tifffile.imwrite(path.with_suffix(".tif"), a * np.uint16(257)),
    )
    status, lines = examine(tmp_path, capsys)
    assert status == 0 and not of_kind(lines, "few images")


def test_a_long_word_in_a_message_takes_no_time() -> None:
    """A search from each of its letters took a minute; numbers and names still fold."""
    word = "a" * 60_000
    problems = [f"{k}.png: {word} is {k}" for k in range(6)]
    began = time.process_time()
    lines = format_findings(Report(problems=problems), None)
    assert time.process_time() - began < 2
    assert [line.startswith("error: ") for line in lines[1:5]] == [True] * 4
    assert lines[4] == "error: 3 more like this; doctor --all names them"
