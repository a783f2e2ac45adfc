"""How a mask was made is in its file: --skip-existing tells masks of other settings."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.prediction.models import noise, write_model, write_photo
from tests.prediction.test_predict import run
from unet_ddp.data.labels import Labels
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.overlap.labels import OverlapLabels
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.inspection import look
from unet_ddp.prediction.load import mark_masks
from unet_ddp.prediction.predictor import Predictor

CHANGE = {
    "threshold": "0.3",
    "tta": "d4",
    "tile": "48",
    "overlap": "50",
    "ground_resolution": "0.5",
    "scale": "0.25",
}
"""Settings by which a mask of the same image and networks is another one, and a value of each."""
SAME = {
    "inputs", "output", "mask_format", "overwrite", "skip_existing", "log",
    "model", "network",  # the digests of the weights tell
    "reader",  # of other kinds of files
    "device", "precision", "runtime", "batch_size", "nproc", "workers",  # rounding at most
    "overlay", "probabilities", "rle", "rle_order", "polygons", "objects", "annotations", "rank", "label_studio",
    "counts", "write",  # other files
}  # fmt: skip
SKIP = ("p", "-o", "out", "--skip-existing")


def test_each_setting_is_in_the_mark_or_leaves_the_mask_as_it_is() -> None:
    """A new setting is to be put in one of the two."""
    assert {field.name for field in fields(PredictConfig)} == SAME | {*CHANGE}
    assert SAME.isdisjoint(CHANGE)


def small(folder: Path, **how: float) -> Predictor:
    """A predictor of the checkpoint in a folder, whose scale may be changed."""
    write_model(folder / "m.pt", Labels((0, 255)), scale=how.pop("scale", 0.5))
    return Predictor.from_checkpoint(folder / "m.pt", device="cpu", **how)


@pytest.mark.parametrize("name", CHANGE)
def test_a_setting_that_changes_masks_is_in_their_mark(tmp_path: Path, name: str) -> None:
    value = CHANGE[name]
    plain = mark_masks(small(tmp_path))
    how = {name: value if name == "tta" else float(value)}
    if name == "tile":
        how = {name: int(value)}
    other = mark_masks(small(tmp_path, **how))  # type: ignore[arg-type]
    assert plain.split()[0] == other.split()[0] and plain != other and value in other
    assert mark_masks(small(tmp_path)) == plain


def test_the_limits_of_objects_and_classes_are_in_the_mark(tmp_path: Path) -> None:
    for one, other in (
        (ObjectLabels.of(("cell",)), {"separation": (0.6, 0.4)}),
        (OverlapLabels((1, 2), names=("a", "b")), {"thresholds": (0.6, 0.4)}),
    ):
        marks = []
        for labels in (one, type(one).from_dict(one.to_dict() | other)):
            write_model(tmp_path / "m.pt", labels)
            marks.append(mark_masks(Predictor.from_checkpoint(tmp_path / "m.pt", device="cpu")))
        assert marks[0].split()[0] == marks[1].split()[0] and marks[0] != marks[1]


def test_kept_masks_of_other_settings_are_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "abc":
        write_photo(here / f"p/{name}.png")
    assert run("p/a.png", "-o", "out/a_mask.png", "--tta", "d4", "-t", "0.01") == 0
    before = Path("out/a_mask.png").read_bytes()
    capsys.readouterr()
    assert run(*SKIP, "--rle", "r.csv") == 0
    said = capsys.readouterr().out
    assert (
        "warning: keeping 1 mask made with other settings, e.g. out/a_mask.png (threshold=0.01 tta=d4, here "
        "threshold=0.5 tta=none); to have all alike, use another --output, or --overwrite in place of "
        "--skip-existing\n" in said
    )
    assert Path("out/a_mask.png").read_bytes() == before
    for path in Path("out").iterdir():
        path.unlink()
    assert run(*SKIP) == 0
    assert run(*SKIP, "-t", "0.5", "--tile", "64", "--overlap", "50") == 0  # all are seen whole
    assert "other settings" not in capsys.readouterr().out
    assert run(*SKIP, "--tile", "32") == 0
    assert "keeping 3 masks made with other settings" in capsys.readouterr().out
    for path in Path("out").iterdir():  # as an earlier version, or another program, writes them
        with Image.open(path) as picture:
            words = picture.info["Software"].split()[:2]
            picture.save(path, software=" ".join(words))
    assert run(*SKIP, "--tta", "d4") == 0
    assert "other settings" not in capsys.readouterr().out


@pytest.mark.parametrize("on_map", [False, True])
@pytest.mark.parametrize("form", ["png", "tif"])
@pytest.mark.parametrize("kind", ["one", "overlap", "objects"])
def test_masks_of_every_kind_have_their_mark(
    here: Path, capsys: pytest.CaptureFixture[str], kind: str, form: str, on_map: bool
) -> None:
    if kind == "objects":
        pytest.importorskip("skimage")
    labels = {
        "one": Labels((0, 255)),
        "overlap": OverlapLabels((1, 2), names=("a", "b")),
        "objects": ObjectLabels.of(("cell",)),
    }[kind]
    write_model(here / "checkpoints/best.pt", labels)
    Path("p").mkdir()
    if on_map:
        rasterio = pytest.importorskip("rasterio")
        how = {"width": 67, "height": 41, "count": 3, "dtype": "uint8", "crs": "EPSG:32633"}
        transform = rasterio.Affine(1, 0, 400_000, 0, -1, 5_800_000)
        with rasterio.open("p/a.tif", "w", driver="GTiff", transform=transform, **how) as file:
            file.write(noise(41, 67).transpose(2, 0, 1))
    else:
        tifffile.imwrite("p/a.tif", noise(41, 67))
    assert run(*SKIP, "--mask-format", form) == 0
    for path in Path("out").iterdir():
        seen = look(path)
        assert seen is not None and " tta=none " in seen.mark and seen.size == (41, 67)
    capsys.readouterr()
    assert run(*SKIP, "--mask-format", form, "--tta", "mirror") == 0
    assert "keeping 1 mask made with other settings" in capsys.readouterr().out


def test_each_mask_of_an_image_has_the_mark_of_what_made_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a mask for each class, one is predicted again with another network: the others are its neighbours."""
    facts = OverlapLabels((1, 2), names=("a", "b")).to_dict() | {"thresholds": (1e-6, 1e-6)}
    write_model(
        here / "checkpoints/best.pt", OverlapLabels.from_dict(facts)
    )  # the same with any tta
    write_photo(here / "p/x.png")
    kept, removed = Path("out/x_mask_a.png"), Path("out/x_mask_b.png")
    assert run(*SKIP) == 0
    removed.unlink()
    assert run(*SKIP, "--tta", "mirror") == 0
    marks = [seen.mark for path in (kept, removed) if (seen := look(path))]
    assert [" tta=none " in mark for mark in marks] == [True, False]
    assert " tta=mirror " in marks[1]
    for tta, expected in (("none", removed), ("mirror", kept)):
        capsys.readouterr()
        assert run(*SKIP, "--tta", tta) == 0
        said = capsys.readouterr().out
        assert f"keeping 1 mask made with other settings, e.g. {expected} (tta=" in said


def test_a_damaged_mask_that_is_predicted_again_has_the_mark_of_what_made_it(here: Path) -> None:
    write_photo(here / "p/a.png")
    mask = Path("out/a_mask.png")
    assert run(*SKIP, "--tta", "d4") == 0
    content = bytearray(mask.read_bytes())
    start = content.index(b"IDAT") + 6  # head and end are whole
    content[start : start + 20] = bytes(20)
    mask.write_bytes(content)
    assert run(*SKIP, "--rle", "r.csv") == 0
    seen = look(mask)
    assert seen is not None and " tta=none " in seen.mark


@pytest.mark.parametrize(
    "words", ["tile=abc", "tile=²", f"tile={'9' * 5000}", "tile", "=", "a=b=c"]
)
def test_a_mark_of_another_program_is_none(
    here: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    write_photo(here / "p/a.png")
    Path("out").mkdir()
    mark = mark_masks(Predictor.from_checkpoint("checkpoints/best.pt", device="cpu")).split()[0]
    mask = Image.fromarray(np.zeros((41, 67), np.uint8))
    mask.save("out/a_mask.tif", tiffinfo={305: f"unet_ddp {mark} {words}"})
    assert run(*SKIP, "--mask-format", "tif") == 0
    assert "1 image skipped" in capsys.readouterr().out
