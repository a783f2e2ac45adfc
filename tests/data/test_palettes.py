"""One picture is one mask, whatever indices its palette has; and masks of indices stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import make_set
from unet_ddp.__main__ import main
from unet_ddp.checks.check import CheckedData, check_dataset
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Colour, as_numbers, voc_colour
from unet_ddp.data.matching import Report
from unet_ddp.data.readers.read import read_mask
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.overlap.folders import read_codes

BLACK, RED, GREEN, BLUE, WHITE = (0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255), (255,) * 3
GREYS = tuple((k, k, k) for k in range(256))
VOC = tuple(map(voc_colour, range(256)))
IDS = np.repeat(np.array([[0, 0, 0, 1, 2, 3], [0, 0, 0, 1, 1, 3]], np.uint8), 9, axis=0)
CELLS = ObjectLabels.of(("cell",))


def with_palette(indices: np.ndarray, palette: tuple[Colour, ...]) -> Image.Image:
    image = Image.fromarray(indices)
    image.putpalette(bytes(np.array(palette, np.uint8)))
    return image


def reorder(colours: np.ndarray, palette: tuple[Colour, ...]) -> Image.Image:
    """Return colours (H, W, 3) as indices of a palette."""
    order = (colours[..., None, :] == np.array(palette)).all(axis=-1)
    return with_palette(order.argmax(axis=-1).astype(np.uint8), palette)


Save = Callable[[np.ndarray, Path], Path]


def saving(suffix: str, convert: Callable[[np.ndarray], Image.Image]) -> Save:
    def save(colours: np.ndarray, path: Path) -> Path:
        path = path.with_suffix(suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        convert(colours).save(path)
        return path

    return save


def adaptive(colours: np.ndarray) -> Image.Image:
    return Image.fromarray(colours).convert("P", palette=Image.Palette.ADAPTIVE, colors=4)


SAVED = {
    "gif": saving(".gif", Image.fromarray),
    "adaptive": saving(".png", adaptive),
    "quantised": saving(".png", lambda colours: Image.fromarray(colours).quantize(4)),
    "1 bit": saving(".bmp", lambda c: reorder(c, (WHITE, BLACK))),
    "black first": saving(".png", lambda c: reorder(c, (BLACK, WHITE))),
}
every_palette = pytest.mark.parametrize("save", SAVED.values(), ids=SAVED)


def paint(ids: np.ndarray, *colours: Colour) -> np.ndarray:
    return np.array(colours, np.uint8)[ids.astype(np.uint8)]


def check(
    folder: Path, labels: Labels | None = None, report: Report | None = None, **flags: object
) -> CheckedData:
    places = {"images": str(folder / "imgs"), "masks": str(folder / "masks")}
    config = DataConfig(**places, resize_masks=True, **flags)  # type: ignore[arg-type]
    report = report or Report(collects=True)
    data = check_dataset(config, report, parts=DATA_PARTS, seed=0, labels=labels)
    assert data is not None and report.problems == []
    return data


CITY = ((128, 64, 128), (244, 35, 232), RED, GREEN, *[BLUE] * 251, BLACK)
MOST, FEW = np.arange(18)[:, None] + 0 * IDS > 5, np.arange(18)[:, None] + 0 * IDS > 15
MOST, FEW = MOST.astype(np.uint8), FEW.astype(np.uint8)
MANY = (WHITE, *[(k, 9, 9) for k in range(9)], BLACK, *[(k, 0, 9) for k in range(20)])


@pytest.mark.parametrize(
    "palette", [CITY, MANY, GREYS[::-1], (WHITE, *[BLACK] * 255), (WHITE, BLACK, *[RED] * 30)]
)
def test_one_index_is_the_background_of_all_masks_of_a_set(
    tmp_path: Path, palette: tuple[Colour, ...]
) -> None:
    """Whatever other indices a mask has: background and an object were exchanged in some."""
    counts = np.zeros(256, int)
    last = 255 if len(palette) > 255 else 10
    for number, path in enumerate(sorted((make_set(tmp_path, 6) / "masks").iterdir())):
        mask = (np.arange(24 * 32) % (3 + number)).astype(np.uint8).reshape(24, 32)
        mask[:2] = last if number % 2 else 0
        with_palette(mask, palette).save(path)
        counts += np.bincount(mask.ravel(), minlength=256)
        assert read_mask(path, labels=CELLS).tolist() == mask.tolist()
    found = check(tmp_path, instances=True).values.counts
    assert found == {int(k): int(counts[k]) for k in np.flatnonzero(counts)}


def test_the_palette_of_inverted_greys_is_one_of_indices(tmp_path: Path) -> None:
    """ImageJ writes it: 0, white, is the background, and 255 is an object."""
    mask = np.uint8(255) * (IDS > 0)
    for path in (make_set(tmp_path, 5) / "masks").iterdir():
        with_palette(mask, GREYS[::-1]).save(path)
    report = Report(collects=True)
    labels = check(tmp_path, report=report).labels
    assert labels is not None and labels.values == (0, 255)
    assert not any("black" in line for line in report.warnings)
    trained = Labels((0, 255), palette=GREYS)
    assert read_mask(path, labels=trained).tolist() == mask.tolist()
    (tmp_path / "classes" / "car").mkdir(parents=True)
    with_palette(mask, GREYS[::-1]).save(tmp_path / "classes" / "car" / "a.png")
    found = read_codes(tmp_path / "classes" / "*" / "a.png")
    assert found.tolist() == (IDS > 0).tolist()
    (tmp_path / "i").mkdir()
    Image.fromarray(mask).save(tmp_path / "i" / "a.png")
    folders = [str(tmp_path / name) for name in ("classes", "i", "out")]
    assert main(["import", folders[0], "--images", folders[1], "--output", folders[2]]) == 0
    assert np.asarray(Image.open(tmp_path / "out" / "a.png")).tolist() == (IDS > 0).tolist()


@every_palette
def test_black_is_the_background_in_the_folder_of_a_class(tmp_path: Path, save: Save) -> None:
    """Also where its masks are of several kinds, and where one is of this class alone."""
    save(paint(IDS > 0, BLACK, WHITE), tmp_path / "car" / "a.png")
    Image.fromarray(paint(IDS > 1, BLACK, WHITE)[..., 0]).save(tmp_path / "car" / "b.png")
    SAVED["gif"](np.full((*IDS.shape, 3), 255, np.uint8), tmp_path / "tree" / "a.gif")
    SAVED["gif"](paint(IDS > 2, BLACK, WHITE), tmp_path / "tree" / "b.gif")
    assert read_codes(tmp_path / "*" / "a.png").tolist() == (2 + (IDS > 0)).tolist()
    assert read_codes(tmp_path / "*" / "b.png").tolist() == ((IDS > 1) + 2 * (IDS > 2)).tolist()


@every_palette
def test_black_is_the_background_of_an_import(tmp_path: Path, save: Save) -> None:
    (tmp_path / "i").mkdir()
    Image.fromarray(paint(IDS, RED, RED, RED, BLACK)).save(tmp_path / "i" / "a.png")
    save(paint(IDS == 1, BLACK, WHITE), tmp_path / "m" / "car" / "a.png")
    save(paint(IDS == 2, BLACK, WHITE), tmp_path / "m" / "tree" / "a.png")
    folders = [str(tmp_path / name) for name in ("m", "i", "out")]
    assert main(["import", folders[0], "--images", folders[1], "--output", folders[2]]) == 0
    expected = np.where(IDS == 3, 0, IDS)
    assert np.asarray(Image.open(tmp_path / "out" / "a.png")).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("palette", "ignore"),
    [
        (None, None),
        (VOC, None),
        (GREYS, None),
        (GREYS[::-1], None),  # black is at an index that no pixel has
        ((WHITE, RED, GREEN, BLUE), None),
        ((WHITE, RED, GREEN, BLUE, *[BLACK] * 252), None),
        ((WHITE, RED, BLACK, BLACK), None),
        ((RED, GREEN, BLUE, BLACK), None),
        ((WHITE, BLACK, RED, GREEN), None),
        ((WHITE, *[BLACK] * 255), None),
        ((WHITE, BLACK), 0),
        ((BLACK, RED, BLACK, BLACK), None),
        ((WHITE, RED), None),  # the others have no colour
        ((WHITE, RED, GREEN, BLACK), 3),
        ((WHITE, RED, GREEN, BLACK), 0),
    ],
)
def test_indices_of_other_palettes_are_numbers(
    palette: tuple[Colour, ...] | None, ignore: int | None
) -> None:
    assert as_numbers(IDS, palette, ignore).tolist() == IDS.tolist()


@pytest.mark.parametrize(
    ("palette", "ids", "flags", "said"),
    [
        ((WHITE, BLACK), MOST, {}, "use --invert"),
        ((WHITE, BLACK), MOST, {"mask_threshold": 0}, "use --invert"),
        ((WHITE, BLACK, BLUE), MOST + (IDS > 2), {"ignore_index": 2}, "use --invert"),
        (
            (RED, GREEN, BLACK),
            2 * MOST - FEW,
            {"mask_threshold": 0},
            "save the masks as colour images",
        ),
        (
            (RED, GREEN, BLACK),
            2 * MOST - FEW,
            {"instances": True},
            "save the masks as colour images",
        ),
        ((WHITE, BLACK), IDS > 1, {}, None),
        (CITY, IDS + 252 * (IDS > 2), {"mask_threshold": 0}, None),  # void
        (CITY, IDS + 252 * (IDS > 2), {"instances": True}, None),
        ((WHITE, BLACK), MOST, {"invert": True}, None),
        ((WHITE, BLACK), MOST, {"class_names": ("paper", "ink")}, None),
        (GREYS[::-1], 255 * MOST, {}, None),
        ((WHITE, RED), MOST, {}, None),
        ((WHITE, RED, BLACK), 2 * MOST - FEW, {}, None),  # classes
        ((BLACK, WHITE), MOST, {}, None),
    ],
)
def test_black_that_is_the_foreground_is_a_warning(
    tmp_path: Path,
    palette: tuple[Colour, ...],
    ids: np.ndarray,
    flags: dict[str, object],
    said: str | None,
) -> None:
    for path in (make_set(tmp_path, 5) / "masks").iterdir():
        with_palette(ids.astype(np.uint8), palette).save(path)
    report = Report(collects=True)
    check(tmp_path, report=report, **flags)
    found = [line for line in report.warnings if "the foreground has black" in line]
    assert len(found) == (said is not None)
    assert all(line.endswith(f"if black is the background, {said}") for line in found)


OWN = (BLACK, RED, GREEN)
VGA = tuple(
    tuple(value * (k >> bit & 1) for bit in (2, 1, 0)) for value in (128, 255) for k in range(8)
)
THREE = Labels((0, 1, 2), palette=OWN)


@pytest.mark.parametrize(
    ("palette", "order"),
    [
        ((BLACK, GREEN, RED), [0, 2, 1]),
        ((RED, BLACK, GREEN), [1, 0, 2]),
        ((GREEN, RED, BLACK), [2, 1, 0]),
        ((GREEN, RED, *[BLACK] * 9), [2, 1, 0]),
        ((BLACK, GREEN, RED, BLACK), [0, 2, 1]),
    ],
)
def test_masks_with_the_classes_colours_at_other_indices_are_those_in_colour(
    tmp_path: Path, palette: tuple[Colour, ...], order: list[int]
) -> None:
    """Scored and continued on, they were other classes."""
    ids = np.minimum(IDS, 2)
    for path in (make_set(tmp_path, 5) / "masks").iterdir():
        with_palette(np.array(order, np.uint8)[ids], palette).save(path)
    assert read_mask(path, labels=THREE).tolist() == ids.tolist()
    named = Labels((1, 0, 2), ignore=7, palette=(*OWN, WHITE), names=("a", "b", "c"))
    assert read_mask(path, labels=named).tolist() == ids.tolist()
    counts = np.bincount(ids.ravel()) * 5
    assert dict(check(tmp_path, THREE).values.counts) == dict(enumerate(counts.tolist()))


@pytest.mark.parametrize(
    ("labels", "palette"),
    [
        (THREE, OWN),
        (THREE, (*OWN, RED, BLACK)),
        (THREE, GREYS),
        (THREE, VOC),
        (THREE, (WHITE, (9, 9, 9), BLUE)),
        (THREE, (BLACK, RED, BLUE, GREEN)),
        (THREE, (BLACK, GREEN, BLUE)),  # only some are the classes'
        (Labels((0, 1), palette=(BLACK, RED)), (RED, GREEN, BLUE)),
        (Labels(tuple(range(21)), palette=VOC), VGA),
        (Labels((0, 255), palette=GREYS), GREYS[::-1]),
        (Labels((0, 1, 2), palette=(GREEN, RED, BLACK)), (BLACK,) * 256),
        (THREE, (BLACK, RED, RED)),
        (THREE, (BLACK, RED, BLACK)),
        (Labels((0, 1, 2)), (BLACK, GREEN, RED)),
        (Labels((0, 1), ignore=2, palette=(BLACK, RED, WHITE)), (BLACK, RED, BLACK)),
        (Labels((0, 1), ignore=2, palette=OWN), (BLACK, GREEN, WHITE)),
        (Labels((0, 255), threshold=0), (WHITE, BLACK, RED)),
        (Labels(tuple(range(4)), palette=OWN), (BLACK, RED, GREEN, BLUE)),
        (Labels((0, 1, 2), palette=(BLACK, RED, RED)), OWN),
        (Labels((0, 1, 2), palette=(RED, BLACK, RED)), OWN),  # as predictions of it are written
    ],
)
def test_masks_with_other_colours_are_read_by_index(
    tmp_path: Path, labels: Labels, palette: tuple[Colour, ...]
) -> None:
    ids = np.minimum(IDS, 2)
    with_palette(ids, palette).save(tmp_path / "a.png")
    assert read_mask(tmp_path / "a.png", labels=labels).tolist() == ids.tolist()
