"""A whole data set: found, checked, labelled, split, and ready to train on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from tests.checks.catalogue import cut, image, listing, mask, masks_as
from tests.conftest import make_pair, make_set
from tests.evaluation.examples import grey_predictor
from unet_ddp.checks.check import (
    CheckedData,
    check_classes,
    check_dataset,
    prepare_data,
    used_folders,
)
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import PreparedData, Sample, SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source, read_mask
from unet_ddp.errors import UserError
from unet_ddp.evaluation.dataset import EvaluationDataset
from unet_ddp.extras.overlap.folders import read_codes


def in_folder(folder: Path, **flags: Any) -> DataConfig:
    return DataConfig(images=str(folder / "imgs"), masks=str(folder / "masks"), **flags)


def prepared(
    folder: Path, *, skip_bad: int = 0, labels: Labels | None = None, **flags: Any
) -> PreparedData:
    return prepare_data(
        in_folder(folder, **flags), parts=DATA_PARTS, seed=0, skip_bad=skip_bad, labels=labels
    )


def collected(config: DataConfig, **how: Any) -> tuple[Report, CheckedData | None]:
    report = Report(collects=True)
    return report, check_dataset(config, report, parts=DATA_PARTS, seed=0, **how)


def names(data: PreparedData) -> tuple[list[str], list[str]]:
    return [p.name for p in data.split.training], [p.name for p in data.split.validation]


def test_masks_of_one_colour_that_are_shaped_by_their_transparency(tmp_path: Path) -> None:
    """What a drawing program exports as a layer: the error says what is not read."""
    for path in (make_set(tmp_path, 3) / "masks").iterdir():
        alpha = np.asarray(Image.open(path))
        Image.fromarray(np.dstack([np.full_like(alpha, 255)] * 3 + [alpha])).save(path)
    with pytest.raises(
        UserError, match=r"#ffffff.*check the masks, whose transparency is not read"
    ):
        prepared(tmp_path)


def with_alpha(path: Path, colour: int, alpha: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.dstack([np.full_like(alpha, colour)] * 3 + [alpha])).save(path)


SHAPE = np.pad(np.full((9, 9), 255, np.uint8), ((5, 10), (5, 18)))
HIDDEN = r"bx\.png: has one colour, and its shape in the transparency, which is not read; save"


@pytest.mark.parametrize("flags", [{}, {"mask_threshold": 0}, {"instances": True}], ids=str)
def test_a_shape_in_the_transparency_of_one_mask_beside_others(
    tmp_path: Path, flags: dict[str, Any]
) -> None:
    """All of its pixels were foreground; in training, in the folder of a class and in scores."""
    mask = make_set(tmp_path, 5) / "masks" / "bx.png"
    with_alpha(mask, 255, SHAPE)
    report, _ = collected(in_folder(tmp_path, **flags))
    assert re.search(HIDDEN, report.problems[0])
    for labels in (Labels((0, 255)), Labels((0, 0xFFFFFF), rgb=True)):
        predictor = grey_predictor(labels)
        pairs = Pairs([Pair("bx", tmp_path / "imgs" / "bx.png", mask)])
        with pytest.raises(UserError, match=HIDDEN):
            EvaluationDataset(pairs, predictor, full_size=True, resize_masks=True).read(0)
    with_alpha(tmp_path / "classes" / "car" / "bx.png", 255, SHAPE)
    with pytest.raises(UserError, match=HIDDEN):
        read_codes(tmp_path / "classes" / "*" / "bx.png")


@pytest.mark.parametrize(
    ("colour", "alpha"),
    [
        (255, np.full_like(SHAPE, 255)),  # one class everywhere
        (255, np.full_like(SHAPE, 9)),  # it has no shape
        (255, np.zeros_like(SHAPE)),  # as it is of an image without objects
        (0, SHAPE),  # empty
    ],
)
def test_a_mask_of_one_colour_without_a_shape(
    tmp_path: Path, colour: int, alpha: np.ndarray
) -> None:
    mask = make_set(tmp_path, 5) / "masks" / "bx.png"
    with_alpha(mask, colour, alpha)
    data = prepared(tmp_path)
    assert data.labels == Labels((0, 0xFFFFFF), rgb=True)
    assert (read_mask(mask, labels=data.labels) == colour * 0x010101).all()


def test_a_known_mask_is_not_read_again_for_its_transparency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan keeps what it has found: neither a later check nor training reads the transparency again."""
    mask = make_set(tmp_path, 5) / "masks" / "bx.png"
    with_alpha(mask, 255, np.full_like(SHAPE, 255))
    labels = prepared(tmp_path).labels
    monkeypatch.setattr(Source, "image", None)
    assert prepared(tmp_path).labels == labels
    assert (read_mask(mask, labels=labels) == 0xFFFFFF).all()
    monkeypatch.undo()
    with_alpha(mask, 255, SHAPE)
    for _ in range(2):
        with pytest.raises(UserError, match=HIDDEN):
            prepared(tmp_path)


def test_a_palette_file_of_colours_for_masks_whose_palettes_differ(tmp_path: Path) -> None:
    """It said that the masks are grey, and lines of values would have mixed the classes."""
    for number, path in enumerate(sorted((make_set(tmp_path, 6) / "masks").iterdir())):
        ids = (np.asarray(Image.open(path)) > 0).astype(np.uint8)
        palette_of([(0, 0, 0), [(255, 0, 0), (0, 255, 0)][number % 2]])(ids, path)
    (tmp_path / "p.csv").write_text("sky,#000000\ncar,#ff0000\ntree,#00ff00\n")
    said = r"p\.csv: names colours, and index 1 is #ff0000 in .*x\.png and #00ff00 in .*x\.png: palettes"
    with pytest.raises(UserError, match=said):
        prepared(tmp_path, palette=str(tmp_path / "p.csv"))


# -- finding -------------------------------------------------------------------------------


def test_a_plain_set(tmp_path: Path) -> None:
    data = prepared(make_set(tmp_path, 20), scale=0.5)
    assert (data.labels, data.format) == (Labels((0, 255)), ImageFormat(3))
    assert data.crop_size is None and data.smallest == (12, 16) and data.range is None
    assert len(data.split.training) == 18 and len(data.split.validation) == 2
    assert data.one_size == (12, 16)
    assert data.groups == {f"{chr(97 + k)}x": f"{chr(97 + k)}x" for k in range(20)}
    assert [note.split(":")[0] for note in data.notes] == ["data", "classes", "split"]
    assert data.notes[0].startswith("data: 20 pairs, 32x24 pixels (16x12 at scale 0.5)")


def palette_of(colours: list[tuple[int, int, int]]) -> Any:
    def save(ids: Any, path: Path) -> None:
        picture = Image.fromarray(ids)
        picture.putpalette([part for colour in colours for part in colour])
        picture.save(path)

    return save


COLOURS = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 0, 0)]  # two indices of one colour
KINDS = [
    (palette_of(COLOURS), COLOURS),
    (lambda ids, path: Image.fromarray(ids * 85).save(path), [(k * 85,) * 3 for k in range(4)]),
    (lambda ids, path: Image.fromarray(ids > 0).save(path), [(0, 0, 0), *[(255, 255, 255)] * 3]),
]


@pytest.mark.parametrize(("save", "colours"), KINDS, ids=["palette", "grey", "1 bit"])
def test_masks_in_grey_or_with_a_palette_are_those_in_the_same_colours(
    tmp_path: Path, rng: np.random.Generator, save: Any, colours: Any
) -> None:
    for number, kind in enumerate(("mixed", "colour")):
        for k in range(8):
            ids = np.random.default_rng(k).integers(0, 4, (20, 30), dtype=np.uint8)
            make_pair(tmp_path / kind, str(k))
            path = tmp_path / kind / "masks" / f"{k}.png"
            if number or k % 2:
                Image.fromarray(np.array(colours, np.uint8)[ids]).save(path)
            else:
                save(ids, path)
    one, other = (prepared(tmp_path / kind, resize_masks=True) for kind in ("mixed", "colour"))
    assert one.labels == other.labels and one.labels.rgb
    samples = [
        SegmentationDataset(
            data.split.training, data.labels, data.format, scale=1.0, resize_masks=True
        )
        for data in (one, other)
    ]
    for index in range(len(samples[0])):
        first, second = (
            data.read_ids(data.pairs.to_read(index), (20, 30), 1.0) for data in samples
        )
        assert np.array_equal(first, second) and len(np.unique(first)) > 1


WHITE_FIRST = palette_of([(255, 255, 255), (0, 0, 0)])
GREYS = {
    "1 bit": lambda white, path: Image.fromarray(white).save(path),
    "8 bit": lambda white, path: Image.fromarray(white * np.uint8(255)).save(path),
}
PALETTES = {
    "white first": lambda white, path: WHITE_FIRST((~white).astype(np.uint8), path),
    "black first": lambda white, path: palette_of([(0, 0, 0), (255,) * 3])(white + np.uint8(0), path),
    "a ramp down": lambda white, path: palette_of([(255 - k,) * 3 for k in range(256)])((~white) * np.uint8(255), path),
    "of Pillow": lambda white, path: Image.fromarray(white * np.uint8(255)).quantize(2).save(path),
}  # fmt: skip


@pytest.mark.parametrize("flags", [{}, {"mask_threshold": 0}, {"classes": 2}], ids=str)
@pytest.mark.parametrize("palette", PALETTES)
@pytest.mark.parametrize("grey", GREYS)
def test_masks_that_look_alike_are_the_same_classes_in_grey_and_with_a_palette(
    tmp_path: Path, grey: str, palette: str, flags: dict[str, Any]
) -> None:
    """Whatever index the palettes give to white."""
    make_set(tmp_path, 8)
    paths = sorted((tmp_path / "masks").iterdir())
    shown = {path.stem: np.asarray(Image.open(path)) > 0 for path in paths}
    for number, path in enumerate(paths):
        (PALETTES[palette] if number % 2 else GREYS[grey])(shown[path.stem], path)
    data = prepared(tmp_path, **flags)
    pairs = data.split.training
    dataset = SegmentationDataset(pairs, data.labels, data.format, scale=1.0)
    for index in range(len(pairs)):
        found = np.asarray(sample_of(dataset, index).mask)
        np.testing.assert_array_equal(found, shown[pairs[index].name])


@pytest.mark.parametrize(
    ("colours", "grey", "flags"),
    [
        ([(255, 255, 255), (255, 0, 0)], 255, {"mask_threshold": 0}),  # a red object on white
        ([(255, 255, 255), (255, 0, 0)], 1, {"mask_threshold": 0}),
        ([(255, 255, 255), (0, 0, 0)], 1, {}),
        ([(255, 255, 255), (0, 0, 0)], 1, {"mask_threshold": 0}),
        ([(255, 255, 255), (0, 0, 0)], 1, {"ignore_index": 255}),
        ([(0, 0, 0), (255, 255, 255)], 1, {"ignore_index": 255}),
    ],
)
def test_palettes_of_other_colours_than_the_grey_ones_are_compared_by_index(
    tmp_path: Path, colours: Any, grey: int, flags: dict[str, Any]
) -> None:
    """Also if some pixels of the grey masks are void, which is as white as an object may be."""
    make_set(tmp_path, 8)
    for number, path in enumerate(sorted((tmp_path / "masks").iterdir())):
        ids = (np.asarray(Image.open(path)) > 0).astype(np.uint8)
        if number % 2:
            palette_of(colours)(ids, path)
        else:
            ids *= np.uint8(grey)
            ids[:1] = flags.get("ignore_index", ids[:1])
            Image.fromarray(ids).save(path)
    labels = prepared(tmp_path, **flags).labels
    assert not labels.rgb and labels.num_classes == 2


VOC = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0)]


@pytest.mark.parametrize(
    ("colours", "classes"),
    [
        (VOC, 4),
        ([(255, 255, 255), *VOC[1:]], 4),  # on white
        ([(255, 255, 255), (0, 0, 0)], 2),
        ([(0, 0, 0), (9, 9, 9), (1, 1, 1), (5, 5, 5)], 4),  # dark ones
    ],
)
def test_class_ids_in_grey_may_be_among_palettes_of_such_indices(
    tmp_path: Path, colours: Any, classes: int
) -> None:
    make_set(tmp_path, 8)
    ids = (np.arange(24 * 32).reshape(24, 32) // 9 % classes).astype(np.uint8)
    for number, path in enumerate(sorted((tmp_path / "masks").iterdir())):
        kept = np.roll(ids, number)
        (palette_of(colours) if number % 2 else lambda a, p: Image.fromarray(a).save(p))(kept, path)
    labels = prepared(tmp_path).labels
    assert (labels.values, labels.rgb) == (tuple(range(classes)), False)


def test_the_mask_that_is_named_is_of_another_kind(tmp_path: Path) -> None:
    """Beside one that can't have colours, grey ones are none."""
    make_set(tmp_path, 6)
    other = tmp_path / "masks" / "dx.png"
    Image.open(other).convert("RGB").save(other)
    last = tmp_path / "masks" / "fx.png"
    np.save(last.with_suffix(".npy"), np.asarray(Image.open(last)).astype(np.int64))
    last.unlink()
    with pytest.raises(UserError, match=r"dx\.png is a colour image, .*ax\.png is not: masks"):
        prepared(tmp_path)


@pytest.mark.parametrize("kind", ["npy", "tif with alpha", "windows"])
def test_grey_masks_that_are_arrays_are_those_in_the_same_colours(
    tmp_path: Path, kind: str
) -> None:
    make_set(tmp_path, 8)
    for number, path in enumerate(sorted((tmp_path / "masks").iterdir())):
        grey = np.asarray(Image.open(path))
        path.unlink()
        if number % 2:
            Image.fromarray(np.dstack([grey] * 3)).save(path.with_suffix(".tif"))
        elif kind == "npy":
            np.save(path.with_suffix(".npy"), grey)
        else:
            two = kind == "tif with alpha"
            bands = np.dstack([grey, grey]) if two else grey
            how: dict[str, Any] = {"extrasamples": ["assocalpha"]} if two else {}
            tifffile.imwrite(path.with_suffix(".tif"), bands, photometric="minisblack", **how)
    data = prepared(tmp_path, **({"window": 16} if kind == "windows" else {}))
    pairs = data.split.training
    dataset = SegmentationDataset(pairs, data.labels, data.format, scale=1.0)
    classes = [np.unique(np.asarray(sample_of(dataset, index).mask)) for index in range(len(pairs))]
    assert data.labels.rgb and {*np.concatenate(classes)} == {0, 1}


@pytest.mark.parametrize("threshold", [None, 127])
def test_a_run_of_grey_masks_is_not_resumed_with_some_in_colour(
    tmp_path: Path, threshold: int | None
) -> None:
    """Their values would be read as grey ones: 0x141414 is above any threshold."""
    make_set(tmp_path, 6)
    other = tmp_path / "masks" / "ax.png"
    Image.open(other).convert("RGB").save(other)
    with pytest.raises(UserError, match="must be of one kind"):
        prepared(tmp_path, labels=Labels((0, 255)), mask_threshold=threshold)


def test_soft_masks_of_two_scales_are_refused(tmp_path: Path) -> None:
    make_set(tmp_path, 6)
    other = tmp_path / "masks" / "ax.png"
    pixels = np.asarray(Image.open(other))
    Image.fromarray(pixels // 255).save(other)
    for path in sorted((tmp_path / "masks").iterdir())[1:]:
        Image.open(path).convert("RGB").save(path)
    with pytest.raises(UserError, match="must be of one kind"):
        prepared(tmp_path, mask_threshold=127)


def test_class_ids_beside_colours_are_refused(tmp_path: Path) -> None:
    make_set(tmp_path, 6)
    Image.fromarray((np.arange(24 * 32).reshape(24, 32) % 3).astype(np.uint8)).save(mask(tmp_path))
    other = tmp_path / "masks" / "ax.png"
    Image.fromarray(np.full((24, 32, 3), (0, 0, 128), np.uint8)).save(other)
    with pytest.raises(UserError, match="must be of one kind"):
        prepared(tmp_path)


@pytest.mark.parametrize("suffix", [".npy", ".tif"])
@pytest.mark.parametrize("value", [-1, -9999, 70_000])
def test_a_value_that_no_class_has_is_refused_and_may_be_left_out(
    tmp_path: Path, suffix: str, value: int
) -> None:
    make_set(tmp_path, 6)
    for path in (tmp_path / "masks").iterdir():
        values = np.asarray(Image.open(path)) // 255 + np.int32(0)
        values[:2] = value
        save = np.save if suffix == ".npy" else tifffile.imwrite
        save(path.with_suffix(suffix), values)
        path.unlink()
    message = rf"mask value {value}, e\.g\. in .*masks/.*: classes are .*--ignore-index {value}"
    with pytest.raises(UserError, match=message):
        prepared(tmp_path)
    assert prepared(tmp_path, ignore_index=value).labels.values == (0, 1)
    assert prepared(tmp_path, mask_threshold=0).labels.values == (0, 255)


def test_sizes_that_differ(tmp_path: Path) -> None:
    make_set(tmp_path, 4)
    make_pair(tmp_path, "zx", size=(40, 28))
    data = prepared(tmp_path)
    assert data.one_size is None and data.smallest == (24, 32)
    assert data.crop_size == (24, 32)  # the median, side by side
    (tmp_path / "p.csv").write_text(
        "image,mask,split\n"
        + "".join(f"imgs/{n}x.png,masks/{n}x.png,train\n" for n in "abc")
        + "imgs/zx.png,masks/zx.png,test\n"
    )
    data = prepare_data(DataConfig(pairs_file=str(tmp_path / "p.csv")), parts=DATA_PARTS, seed=0)
    assert data.one_size == (24, 32)  # of those that are used


def test_the_seed_and_the_flags_decide_the_split(tmp_path: Path) -> None:
    make_set(tmp_path, 12)
    config = in_folder(tmp_path, validation=25)
    splits = {
        tuple(
            pair.name for pair in prepare_data(config, parts=DATA_PARTS, seed=seed).split.validation
        )
        for seed in range(5)
    }
    assert len(splits) > 1 and {len(split) for split in splits} == {3}
    data = prepared(tmp_path, fold="2/3")
    assert len(data.split.validation) == 4 and "fold 2 of 3" in data.split.how
    data = prepared(tmp_path, group_pattern="^([abc])?")
    assert data.groups["ax"] == "a" and data.groups["dx"] == "" and "4 groups" in data.split.how


def test_a_list_is_read_and_its_test_pairs_are_checked_too(tmp_path: Path) -> None:
    listing()(make_set(tmp_path, 6))
    path = tmp_path / "pairs.csv"
    path.write_text(path.read_text().replace("cx.png,train", "cx.png,test"))
    data = prepare_data(DataConfig(pairs_file=str(path)), parts=DATA_PARTS, seed=0)
    assert [len(side) for side in names(data)] == [3, 2]
    assert data.split.how == "by the list, 1 left out"
    cut(image(tmp_path))
    with pytest.raises(UserError, match=r"cx\.png"):
        prepare_data(DataConfig(pairs_file=str(path)), parts=DATA_PARTS, seed=0)


def test_validation_may_have_its_own_folders(tmp_path: Path) -> None:
    make_set(tmp_path, 4)
    make_set(tmp_path / "val", 2, mask_ending="_gt.png")
    (tmp_path / "val" / "masks" / "ax_gt.png").rename(tmp_path / "val" / "masks" / "ax.png")
    (tmp_path / "val" / "masks" / "bx_gt.png").rename(tmp_path / "val" / "masks" / "bx.png")
    own = {"val_images": str(tmp_path / "val/imgs"), "val_masks": str(tmp_path / "val/masks")}
    data = prepared(tmp_path, **own)
    assert names(data) == (["ax", "bx", "cx", "dx"], ["validation/ax", "validation/bx"])
    assert data.notes[0].startswith("data: 6 pairs")
    mask(tmp_path / "val", "bx").unlink()
    with pytest.raises(UserError, match=r"no mask for .*val/imgs/bx\.png"):
        prepared(tmp_path, **own)
    report, found = collected(in_folder(tmp_path, val_images="gone", val_masks="gone"))
    assert report.problems == ["gone: not found; name the folders by --images and --masks"]
    assert found is not None and len(found.table.pairs) == 4


def test_the_demo_set_is_used_only_if_no_data_is_given_or_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    demo: list[Path] = []

    def write_demo(folder: Path) -> Path:
        demo.append(folder)
        return make_set(folder, 3)

    monkeypatch.setattr("unet_ddp.extras.demo_set.draw.write_demo", write_demo)
    data = prepare_data(DataConfig(), parts=DATA_PARTS, seed=0)
    assert demo == [Path("data/demo")] and sum(map(len, names(data))) == 3
    assert data.notes[0] == (
        "no data: data/imgs and data/masks are empty; using the demo set in data/demo"
    )
    Path("data/imgs").mkdir()
    Path("data/imgs/notes.txt").touch()
    prepare_data(DataConfig(), parts=DATA_PARTS, seed=0)
    assert len(demo) == 2
    Path("data/imgs/sub").mkdir()  # images may be in it: data/ is in use
    with pytest.raises(UserError, match="data/masks: not found"):
        prepare_data(DataConfig(), parts=DATA_PARTS, seed=0)
    Path("data/imgs/sub").rmdir()
    Path("data/imgs/A.PNG").touch()
    with pytest.raises(UserError, match="data/masks: not found"):
        prepare_data(DataConfig(), parts=DATA_PARTS, seed=0)
    Path("data/imgs/A.PNG").unlink()
    make_set(tmp_path / "data", 5)
    assert sum(map(len, names(prepare_data(DataConfig(), parts=DATA_PARTS, seed=0)))) == 5
    assert len(demo) == 2


# -- bad files -----------------------------------------------------------------------------


def test_bad_files_are_left_out_up_to_a_number(tmp_path: Path) -> None:
    """The split of the others is that of the whole set."""
    make_set(tmp_path, 12)
    whole = prepared(tmp_path, validation=25)
    bad = [whole.split.training[1], whole.split.validation[0]]
    cut(bad[0].image)
    bad[1].mask.write_bytes(b"")
    gone = {pair.name for pair in bad}
    data = prepared(tmp_path, validation=25, skip_bad=2)
    assert names(data) == tuple([n for n in side if n not in gone] for side in names(whole))
    assert data.one_size == (24, 32)
    assert data.notes[0].startswith("data: 10 pairs")
    assert data.notes[2].endswith("8 images to train on, 2 to validate")
    errors = {
        bad[0].name: f"{bad[0].image}: corrupt or truncated (its end is missing); replace it",
        bad[1].name: f"{bad[1].mask}: is empty (0 bytes); replace or remove it",
    }
    assert data.notes[3:] == [
        f"warning: skipped {errors[name]} ({count} of at most 2)"
        for count, name in enumerate(sorted(errors), start=1)
    ]
    for flags in ({"skip_bad": 1}, {}):
        with pytest.raises(UserError) as caught:
            prepared(tmp_path, validation=25, **flags)
        assert str(caught.value) == "; ".join(errors[name] for name in sorted(errors))


def test_a_run_needs_a_training_image_that_can_be_read(tmp_path: Path) -> None:
    make_set(tmp_path, 2)
    data = prepared(tmp_path, validation=50)
    cut(data.split.training[0].image)
    with pytest.raises(UserError, match="corrupt or truncated"):
        prepared(tmp_path, validation=50, skip_bad=9)
    cut(data.split.validation[0].image)
    report, found = collected(in_folder(tmp_path), skip_bad=9)
    assert found is None and len(report.problems) == 2


# -- problems ------------------------------------------------------------------------------


def test_what_can_be_known_in_spite_of_a_problem(tmp_path: Path) -> None:
    make_set(tmp_path, 6)
    Image.new("L", (33, 24)).save(mask(tmp_path))
    report, data = collected(in_folder(tmp_path))
    assert len(report.problems) == 1 and data is not None
    assert data.split is not None and data.labels == Labels((0, 255)) and len(data.groups) == 6
    report, data = collected(in_folder(tmp_path, resize_masks=True, fold="1/9"))
    assert [problem[:10] for problem in report.problems] == ["--fold 1/9"]
    assert data is not None and data.split is None and data.groups == {} and data.labels is not None
    assert report.notes[0].startswith("data: 6 pairs") and len(report.notes) == 2
    report, data = collected(in_folder(tmp_path, resize_masks=True, mask_threshold=0, invert=True))
    assert report.problems == [] and data is not None
    report, data = collected(in_folder(tmp_path, resize_masks=True, ignore_index=7))
    assert len(report.problems) == 1 and data is not None and data.labels is None


def test_no_pairs_at_all(tmp_path: Path) -> None:
    make_set(tmp_path, 2)
    for path in (tmp_path / "masks").iterdir():
        path.rename(path.with_stem(f"{path.stem}_m"))
    config = replace(in_folder(tmp_path), images=str(tmp_path / "masks"), mask_suffix="_m")
    report, data = collected(config)
    assert data is None and report.problems == ["no pairs of image and mask"]
    report, data = collected(replace(config, images=str(tmp_path / "gone")))
    (problem,) = report.problems
    assert data is None and problem.startswith(f"{tmp_path}/gone: not found; name the folders by")


def test_labels_of_a_resumed_run_stay(tmp_path: Path) -> None:
    masks_as(lambda a: a // 255)(make_set(tmp_path, 6))
    assert prepared(tmp_path, labels=Labels((1, 0, 7))).labels == Labels((1, 0, 7))
    with pytest.raises(UserError, match="unknown mask value"):
        prepared(tmp_path, labels=Labels((0, 255)))


def test_known_labels_of_greys_are_those_of_masks_in_colour(tmp_path: Path) -> None:
    masks_as(lambda a: np.dstack([a] * 3))(make_set(tmp_path, 6))
    report, data = collected(in_folder(tmp_path), labels=Labels((0, 255)))
    assert data is not None and data.values.values == [0, 255] and not report.problems
    masks_as(lambda a: a * np.uint8([0, 0, 1]))(tmp_path)
    with pytest.raises(UserError, match=r"x\.png: unknown mask colour #0000ff"):
        prepared(tmp_path, labels=Labels((0, 255)))


# -- the range of the pixels ---------------------------------------------------------------


def make_tiffs(folder: Path, dtype: str, bands: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Images of very different brightness; the last band is ten times the first."""
    (folder / "imgs").mkdir(parents=True)
    (folder / "masks").mkdir()
    images = []
    for number in range(6):
        bright = rng.normal(300 * number, 40, (24, 32, bands)) * np.linspace(1, 10, bands)
        images.append(np.clip(bright, 0, 60000).astype(dtype))
        write_tiff(folder / "imgs" / f"{chr(97 + number)}x.tif", images[-1])
        values = np.zeros((24, 32), np.uint8)
        values[:12] = 1
        Image.fromarray(values).save(folder / "masks" / f"{chr(97 + number)}x.png")
    return images


def write_tiff(path: Path, bands: np.ndarray) -> None:
    one = bands.shape[2] == 1
    how: dict[str, Any] = {} if one else {"planarconfig": "contig"}
    tifffile.imwrite(path, bands[..., 0] if one else bands, photometric="minisblack", **how)


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32"])
@pytest.mark.parametrize("bands", [1, 4])
def test_the_training_set_has_mean_0_and_deviation_1(
    tmp_path: Path, rng: np.random.Generator, dtype: str, bands: int
) -> None:
    """Each channel over the whole set, and so no image by itself: bright ones stay bright."""
    make_tiffs(tmp_path, dtype, bands, rng)
    data = prepared(tmp_path)
    normalise = Preprocessing.for_data(data.format, data.range, scale=1.0)
    dataset = SegmentationDataset(data.split.training, data.labels, normalise.format, scale=1.0)
    read = [sample_of(dataset, index).image for index in range(len(dataset))]
    seen = normalise(torch.stack(read), torch.float64)  # (N, C, H, W)
    assert seen.mean((0, 2, 3)).abs().max() < 1e-6
    assert (seen.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6
    assert seen.mean((1, 2, 3)).std() > 0.5
    assert Preprocessing.from_dict(normalise.to_dict()) == normalise


def sample_of(dataset: SegmentationDataset, index: int) -> Sample:
    sample = dataset[0, index]
    assert isinstance(sample, Sample)
    return sample


def test_pixels_without_data_count_nowhere(tmp_path: Path, rng: np.random.Generator) -> None:
    """They are zero to the network, their mask is ignored, and they don't shift mean or range."""
    images = make_tiffs(tmp_path, "float32", 2, rng)
    before = prepared(tmp_path)
    for number, bands in enumerate(images):
        bands[3:7, 5:9, 1] = -9999
        write_tiff(tmp_path / "imgs" / f"{chr(97 + number)}x.tif", bands)
    data = prepared(tmp_path, nodata=-9999)
    assert before.range is not None and data.range is not None
    assert data.range.low >= 0 and data.range.mean == pytest.approx(before.range.mean, rel=0.05)
    normalise = Preprocessing.for_data(data.format, data.range, scale=1.0)
    for scale, count in ((1.0, 16), (0.5, 9)):  # all that have a share of them
        dataset = SegmentationDataset(
            data.split.training, data.labels, normalise.format, scale=scale
        )
        sample = sample_of(dataset, 0)
        seen = normalise(sample.image[None])
        ignored = sample.mask == IGNORE_ID
        assert ignored.sum() == count
        if scale == 1:
            assert seen[0][:, ignored].abs().max() < 1e-5
        assert seen.isfinite().all() and seen.abs().max() < 20


def test_images_are_drawn_by_the_classes_of_the_training_masks(tmp_path: Path) -> None:
    """One of which has pixels to ignore only; and so may all of them."""
    make_set(tmp_path, 6)
    ignored = np.full((24, 32), 9, np.uint8)
    Image.fromarray(ignored).save(tmp_path / "masks" / "bx.png")
    flags = {"ignore_index": 9, "balance": 50.0, "pairs_file": str(tmp_path / "pairs.csv")}
    rows = [f"imgs/{name}x.png,masks/{name}x.png," for name in "abcdef"]
    for name in "abc":
        sides = ["training" if row[5] in ("b", name) else "validation" for row in rows]
        lines = [row + side for row, side in zip(rows, sides, strict=True)]
        (tmp_path / "pairs.csv").write_text("\n".join(["image,mask,split", *lines]))
        if name == "b":
            with pytest.raises(UserError, match=r"^--balance 50: the training masks have no pixel"):
                prepare_data(DataConfig(**flags), parts=DATA_PARTS, seed=0)
            continue
        data = prepare_data(DataConfig(**flags), parts=DATA_PARTS, seed=0)
        assert data.notes[-1] == "balance: 50% of the samples drawn by class, 25.0% for each"
        assert data.draw is not None and data.cut is not None
        own = [pair.image.name for pair in data.split.training].index(f"{name}x.png")
        found = {data.draw(0, index) for index in range(50)}
        assert {draw for draw in found if draw[1] is not None} == {(own, 0), (own, 1)}
    flags |= {"balance": 0.0}
    data = prepare_data(DataConfig(**flags), parts=DATA_PARTS, seed=0)
    assert data.draw is None and data.cut is None and data.crop_size is None
    data = prepare_data(DataConfig(**flags, scale_jitter=(0.5, 2.0)), parts=DATA_PARTS, seed=0)
    assert data.draw is None and data.cut is not None and data.crop_size == (24, 32)


def test_weights_must_be_one_per_class() -> None:
    check_classes(Labels((0, 1)), None)
    check_classes(Labels((0, 1)), (1.0, 2.0))
    for weights in ((1.0,), (1.0, 2.0, 3.0)):
        with pytest.raises(UserError, match=f"{len(weights)} weights for 2 classes; give one"):
            check_classes(Labels((0, 1)), weights)


@pytest.mark.parametrize(
    ("given", "named"),
    [({}, True), ({"images": "i"}, False), ({"pairs_file": "a.csv"}, False)],
)  # fmt: skip
def test_folders_are_named_for_the_user_only_if_no_setting_says_what_the_pairs_are(
    given: dict[str, Any], named: bool
) -> None:
    pairs = Pairs([Pair("a", Path("x/a.png"), Path("x/a_m.png"))])
    assert (used_folders(DataConfig(**given), pairs) != {}) == named
