"""A protocol trains, chooses and tests on three lists that share no image, and scores as its papers do."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.protocol_sets import (
    Sets,
    find_camvid,
    find_carvana,
    find_dsb2018,
    find_wbc,
    is_fluorescence,
)
from benchmarks.protocols import PROTOCOLS, main
from tests.conftest import make_pair
from unet_ddp.checks.check import prepare_data
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError

SIDES = {"train": ["a_1", "a_2", "a_3"], "val": ["b_1", "b_2"], "test": ["c_1", "c_2"]}


def make_camvid(folder: Path) -> Path:
    """Lists with the paths of another machine; the second class is a square, 11 is void."""
    for side, names in SIDES.items():
        lines = []
        for name in names:
            image, mask = make_pair(folder / "work", name, values=(0, 1))
            for path, place in ((image, side), (mask, f"{side}annot")):
                target = folder / "CamVid" / place / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
            lines.append(f"/elsewhere/{side}/{name}.png /elsewhere/{side}annot/{name}.png\n")
        (folder / f"CamVid/{side}.txt").write_text("".join(lines) + "\n")
    return folder


def make_carvana(folder: Path, size: tuple[int, int] = (24, 32)) -> Path:
    """Two views of each of eight cars."""
    for car in range(8):
        for view in (1, 2):
            _, mask = make_pair(folder, f"car{car}_{view:02}", size=size, values=(0, 1))
            mask.rename(mask.with_name(f"car{car}_{view:02}_mask.png"))
    return folder


def make_nuclei(folder: Path, count: int = 40) -> tuple[Path, Path]:
    """Images of two squares that touch, a file for each; odd ones are bright. Returns data and names."""
    random = np.random.default_rng(0)
    for number in range(count):
        home = folder / f"stage1_train/n{number}"
        pixels = random.integers(0, 60, (32, 32, 1), dtype=np.uint8).repeat(3, 2)
        for nucleus, left in enumerate((4, 12)):
            mask = np.zeros((32, 32), np.uint8)
            mask[8:16, left : left + 8] = 255
            pixels[mask > 0] += 100
            (home / "masks").mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask).save(home / f"masks/{nucleus}.png")
        (home / "images").mkdir()
        Image.fromarray(255 - pixels if number % 2 else pixels).save(home / f"images/n{number}.png")
    names = folder / "names.txt"
    names.write_text("".join(f"n{number}\n" for number in range(count)))
    return folder, names


def make_blood(folder: Path) -> Path:
    """Forty images of a cell with a nucleus, and their masks beside them."""
    folder.mkdir()
    for number in range(1, 41):
        mask = np.zeros((32, 32), np.uint8)
        mask[4:28, 4:28], mask[12:20, 12:20] = 128, 255
        Image.fromarray(mask).save(folder / f"{number:03}.png")
        Image.fromarray(mask).convert("RGB").save(folder / f"{number:03}.bmp")
    return folder


@pytest.fixture(params=["camvid", "carvana", "dsb2018", "wbc"])
def found(request: pytest.FixtureRequest, tmp_path: Path) -> Sets:
    if request.param == "camvid":
        return find_camvid(make_camvid(tmp_path))
    if request.param == "carvana":
        return find_carvana(make_carvana(tmp_path), 1)
    if request.param == "wbc":
        return find_wbc(make_blood(tmp_path / "Dataset 1"))
    return find_dsb2018(*make_nuclei(tmp_path), tmp_path / "objects")


def test_the_lists_share_no_image_and_the_trainer_gets_two_of_them(
    found: Sets, tmp_path: Path
) -> None:
    found.check()
    training, validation, test = ({image for image, _ in pairs} for pairs in found)
    assert all((training, validation, test))
    assert not training & validation and not test & (training | validation)
    found.write(tmp_path / "pairs.csv")
    data = prepare_data(
        DataConfig(pairs_file=str(tmp_path / "pairs.csv"), mask_threshold=0),
        parts=DATA_PARTS,
        seed=0,
    )
    assert {pair.image for pair in data.split.training} == training
    assert {pair.image for pair in data.split.validation} == validation
    text = (tmp_path / "pairs.csv").read_text()
    assert not [image for image in test if image.name in text]


def test_an_image_in_two_lists_and_an_empty_list_are_mistakes() -> None:
    one, two = (Path("a.png"), Path("m.png")), (Path("b.png"), Path("m.png"))
    for sets in (Sets([one], [two], [one]), Sets([one], [one], [two]), Sets([one], [two], [two])):
        with pytest.raises(UserError, match=r"[ab]\.png: in two of"):
            sets.check()
    with pytest.raises(UserError, match="test: no image"):
        Sets([one], [two], []).check()


def test_camvid_takes_its_own_lists(tmp_path: Path) -> None:
    sets = find_camvid(make_camvid(tmp_path))
    assert [[image.stem for image, _ in pairs] for pairs in sets] == [*SIDES.values()]
    assert all(
        image.parent.name + "annot" == mask.parent.name for pairs in sets for image, mask in pairs
    )


def test_carvana_keeps_cars_whole_and_tests_others_in_each_turn(tmp_path: Path) -> None:
    data = make_carvana(tmp_path)
    tested = []
    for turn in range(8):
        cars = [{image.name[:4] for image, _ in pairs} for pairs in find_carvana(data, turn)]
        assert [len(side) for side in cars] == [6, 1, 1] and len(set.union(*cars)) == 8
        tested += cars[2]
    assert len(set(tested)) == 8


def test_dsb2018_uses_the_named_images_alone(tmp_path: Path) -> None:
    data, names = make_nuclei(tmp_path)
    everything = find_dsb2018(data, names, tmp_path / "all")
    names.write_text("\n".join(f"n{number}" for number in range(0, 40, 2)))
    some = find_dsb2018(data, names, tmp_path / "some")
    for whole, part in zip(everything, some, strict=True):  # a name decides, not the other names
        even = [image for image, _ in whole if int(image.stem[1:]) % 2 == 0]
        assert [image for image, _ in part] == even
    assert len(list((tmp_path / "some").iterdir())) == 20
    names.write_text("n0\nn1\nother\n")
    with pytest.raises(UserError, match=r"names\.txt: other is not in .*stage1_train"):
        find_dsb2018(data, names, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_each_file_of_a_nucleus_is_an_object(tmp_path: Path) -> None:
    sets = find_dsb2018(*make_nuclei(tmp_path), tmp_path / "objects")
    image, mask = sets.training[0]
    numbers = read_mask(mask)
    assert numbers[8:16, 4:12].min() == numbers[8:16, 4:12].max() == 1
    assert numbers[8:16, 12:20].min() == numbers[8:16, 12:20].max() == 2
    assert np.count_nonzero(numbers) == 128
    for image, _ in sets.training:
        assert is_fluorescence(image) == (int(image.stem[1:]) % 2 == 0)


class Answer:
    """A predictor whose masks are known."""

    def __init__(self, masks: dict[Path, Any]) -> None:
        self.masks = masks

    def __call__(self, image: Path) -> Answer:
        self.mask = self.masks[image]
        return self


def write_masks(folder: Path, *masks: list[list[int]]) -> list[tuple[Path, Path]]:
    """Pairs of a dark image and one of the masks."""
    pairs = []
    for number, mask in enumerate(masks):
        image, path = folder / f"image{number}.png", folder / f"mask{number}.png"
        Image.fromarray(np.zeros((*np.shape(mask), 3), np.uint8)).save(image)
        Image.fromarray(np.array(mask, np.uint8)).save(path)
        pairs.append((image, path))
    return pairs


def test_blood_cells_have_their_nuclei_and_values_between_count_as_the_nearest(
    tmp_path: Path,
) -> None:
    pairs = write_masks(tmp_path, [[0, 60, 128, 255]], [[70, 128, 190, 255]])
    found = [np.array([[0, 1, 1, 2]]), np.array([[1, 1, 2, 2]])]
    predictor = Answer({image: mask for (image, _), mask in zip(pairs, found, strict=True)})
    score = PROTOCOLS["wbc"].score(predictor, pairs)
    assert score["cell Dice"] == pytest.approx(2 * 6 / (6 + 7))  # of 6, all are found, and one more
    assert score["cell IoU"] == pytest.approx(6 / 7)
    assert score["nucleus Dice"] == pytest.approx(2 * 2 / (2 + 3))


def test_camvid_counts_the_pixels_of_all_images_without_void(tmp_path: Path) -> None:
    pairs = write_masks(tmp_path, [[0, 0, 0, 11]], [[1, 1, 11, 11]])
    found = [np.array([[0, 0, 1, 2]]), np.array([[1, 0, 0, 0]])]
    predictor = Answer({image: mask for (image, _), mask in zip(pairs, found, strict=True)})
    # class 0: 2 hits of 3 true and 3 predicted; class 1: 1 of 2 and 2; class 2 is at void alone
    score = PROTOCOLS["camvid"].score(predictor, pairs)
    assert score == {"mIoU": pytest.approx((2 / 4 + 1 / 3) / 2)}


def test_carvana_has_the_mean_of_the_images_too(tmp_path: Path) -> None:
    pairs = write_masks(tmp_path, [[1, 1, 1, 1]], [[1, 0, 0, 0]])
    found = [np.array([[1, 1, 1, 1]]), np.array([[0, 1, 0, 0]])]
    predictor = Answer({image: mask for (image, _), mask in zip(pairs, found, strict=True)})
    score = PROTOCOLS["carvana"].score(predictor, pairs)
    assert score == pytest.approx({"mean Dice": 0.5, "Dice of all pixels": 2 * 4 / 10})


def test_dsb2018_scores_objects_and_their_pixels(tmp_path: Path) -> None:
    pairs = write_masks(tmp_path, [[1, 1, 0, 2, 2]], [[0, 3, 3, 3, 0]])
    Image.fromarray(np.full((1, 5, 3), 200, np.uint8)).save(pairs[1][0])  # no fluorescence
    found = [np.array([[1, 1, 0, 2, 0]]), np.array([[0, 5, 5, 5, 0]])]
    predictor = Answer({image: mask for (image, _), mask in zip(pairs, found, strict=True)})
    score = PROTOCOLS["dsb2018"].score(predictor, pairs)
    # one of the three objects has IoU 0.5, which is not above 0.5
    assert score["AP50"] == score["mean AP"] == pytest.approx(2 / 4)
    assert score["Dice"] == pytest.approx(2 * 6 / 13)
    assert score["fluorescence AP50"] == pytest.approx(1 / 3)
    assert score["fluorescence Dice"] == pytest.approx(2 * 3 / 7)


def test_mistakes_are_one_line_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    (tmp_path / "record.json").touch()
    common = ["--data", str(tmp_path), "--output"]
    cases = {
        ("camvid", str(new)): "train.txt: not found; docs/protocols.md has the layout of --data",
        ("dsb2018", str(new)): "error: dsb2018: no images are named; use --names FILE",
        ("carvana", str(tmp_path)): "record.json: already exists; use another --output",
    }
    for (name, output), text in cases.items():
        assert main([name, *common, output]) == 2
        line = capsys.readouterr().err
        assert text in line and line.count("\n") == 1
        assert not new.exists()


@pytest.mark.thorough
@pytest.mark.release
def test_a_row_and_a_record_tell_what_was_typed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, output = make_carvana(tmp_path / "data", size=(128, 192)), tmp_path / "new"
    flags = "--epochs 1 --width 4 -b 2 --workers 0 --device cpu"
    typed = ["carvana", "--data", str(data), "--seeds", "2", "--output", str(output), "--no-test"]
    assert main([*typed, "--", *flags.split()]) == 0
    record = json.loads((output / "record.json").read_text())
    assert record["command"].endswith(f"protocols carvana --data DIR --seeds 2 -- {flags}")
    assert [turn["images"] for turn in record["turns"]] == [[12, 2, 2]] * 2
    assert all(turn["seconds"] > 0 and turn["test"] == {} for turn in record["turns"])
    assert all(0 < turn["processor seconds"] < 999 for turn in record["turns"])
    scores = [turn["validation"]["mean Dice"] for turn in record["turns"]]
    row = capfd.readouterr().out.splitlines()[-1]
    assert f"mean Dice {np.mean(scores):.4f} ± {np.std(scores, ddof=1):.4f}" in row
    assert row.count("|") == 11 and "| not scored |" in row
    for turn in range(2):
        with (output / f"seed{turn}/split.csv").open() as file:
            used = {Path(line["image"]) for line in csv.DictReader(file)}
        tested = {image for image, _ in find_carvana(data, turn).test}
        assert len(used) == 14 and not used & tested
    assert main([*typed, "--output", str(tmp_path / "other"), "--", "--epochs", "x"]) == 2
