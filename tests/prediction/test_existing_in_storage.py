"""Masks of earlier jobs in object storage: the rules of those in a folder hold."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import obstore
import pytest
from PIL import Image

from tests.object_store import MemoryBucket
from tests.prediction.models import noise, write_model, write_photo
from tests.prediction.test_predict import run
from unet_ddp.data.labels import Labels
from unet_ddp.extras.cloud import Url, put, read
from unet_ddp.prediction import existing
from unet_ddp.prediction.inspection import look
from unet_ddp.storage import fetch_ahead

IMAGES, OUT = Url("s3://bucket/imgs"), Url("s3://bucket/out")
SKIP = (str(IMAGES), "-o", str(OUT), "--skip-existing")


@pytest.fixture
def photos(here: Path, memory_store: MemoryBucket) -> MemoryBucket:
    """Three images in a bucket, and their masks."""
    for name in "abc":
        put(IMAGES / f"{name}.png", write_photo(here / f"{name}.png"))
    assert run(*SKIP, "--tta", "mirror") == 0
    return memory_store


@pytest.mark.parametrize("table", [(), ("--polygons", "p.geojson")])
@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["-m", "other.pt", "--tta", "mirror"], "warning: keeping 3 masks of another network, e.g. s3://bucket/out/a_mask.png; "),
        (["--tta", "d4"], "warning: keeping 3 masks made with other settings, e.g. s3://bucket/out/a_mask.png (tta=mirror, here tta=d4); "),
        (["-m", "three.pt"], "error: s3://bucket/out/a_mask.png: was made by a network of other classes; "),
    ],
)  # fmt: skip
def test_masks_of_another_network_or_settings_are_named(
    photos: MemoryBucket,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    line: str,
    table: tuple[str, ...],
) -> None:
    """Also where nothing is read, as no table is made of them."""
    write_model(Path("other.pt"), Labels((0, 255)), seed=5)
    write_model(Path("three.pt"), Labels((0, 1, 2)))
    before = read(OUT / "a_mask.png")
    capsys.readouterr()
    assert run(*SKIP, *argv, *table) == 2 * line.startswith("error")
    said = capsys.readouterr()
    assert line in (said.err if line.startswith("error") else said.out)
    assert read(OUT / "a_mask.png") == before


def test_masks_of_the_same_job_are_kept_without_a_word(
    photos: MemoryBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    """And another output is added."""
    before = read(OUT / "a_mask.png")
    capsys.readouterr()
    assert run(*SKIP, "--tta", "mirror", "--rle", "r.csv") == 0
    said = capsys.readouterr()
    assert "keeping" not in said.out and "3 images skipped" in said.out
    assert run(*SKIP, "--tta", "mirror", "--overlay") == 0
    assert Image.open(BytesIO(read(OUT / "a_overlay.png"))).size == (67, 41)
    assert read(OUT / "a_mask.png") == before


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda content: content[: len(content) // 2],
    "no picture": lambda _: b"<html>503</html>",
}


@pytest.mark.parametrize("form", ["png", "tif"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_mask_is_predicted_again(
    photos: MemoryBucket,
    capsys: pytest.CaptureFixture[str],
    form: str,
    damage: Callable[[bytes], bytes],
) -> None:
    argv = (*SKIP, "--tta", "mirror", "--mask-format", form)
    assert run(*argv) == 0
    mask = OUT / f"b_mask.{form}"
    before = read(mask)
    put(mask, damage(before))
    assert run(*argv) == 0
    assert f"image, e.g. {mask}" in capsys.readouterr().out and read(mask) == before


@pytest.mark.parametrize("name", ["b.png", "b.jpg"])
def test_a_mask_of_another_size_than_its_image_is_predicted_again(
    here: Path, memory_store: MemoryBucket, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A photo that is turned by its EXIF has the size that is shown."""
    put(IMAGES / name, write_photo(here / name))
    assert run(*SKIP) == 0
    fetch_ahead([])  # as at the end of a program
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(noise(30, 20)).save(name, exif=turned)
    put(IMAGES / name, Path(name))
    assert run(*SKIP, "--rle", "r.csv") == 0
    assert Image.open(BytesIO(read(OUT / "b_mask.png"))).size == (30, 20)
    assert "e.g. s3://bucket/out/b_mask.png" in capsys.readouterr().out
    assert run(*SKIP, "--rle", "r.csv") == 0
    assert "predicting again" not in capsys.readouterr().out


def test_a_mask_of_another_size_that_no_network_has_marked_is_not_replaced(
    photos: MemoryBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be a person's work."""
    drawn = BytesIO()
    Image.new("L", (7, 5)).save(drawn, "PNG")
    put(OUT / "b_mask.png", drawn.getvalue())
    assert run(*SKIP) == 2
    assert (
        "error: s3://bucket/out/b_mask.png: 7x5 pixels, its image 67x41, and not known"
        in capsys.readouterr().err
    )
    assert read(OUT / "b_mask.png") == drawn.getvalue()


def test_few_of_many_masks_are_looked_at_where_no_table_needs_them(
    photos: MemoryBucket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(existing, "SAMPLE", 2)
    capsys.readouterr()
    for table, which in (((), " of the 2 that were looked at"), (("--rle", "r.csv"), "")):
        assert run(*SKIP, "--tta", "d4", *table) == 0
        said = capsys.readouterr().out
        count = 2 if which else 3
        assert f"keeping {count} masks{which} made with other settings, e.g. {OUT}/a_mask" in said
        assert "3 images skipped" in said


def test_few_of_many_images_are_asked_for_their_size(
    photos: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their masks are files of this machine, of which each is looked at."""
    argv = (str(IMAGES), "-o", "here", "--skip-existing")
    assert run(*argv) == 0
    monkeypatch.setattr(existing, "SAMPLE", 1)
    before = photos.count_requests()
    assert run(*argv) == 0
    assert photos.count_requests() - before == 2  # a listing, and the first image


@pytest.mark.parametrize("form", ["png", "tif"])
def test_of_a_large_mask_few_bytes_are_read(
    here: Path, memory_store: MemoryBucket, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    mask = OUT / f"a_mask.{form}"
    Image.fromarray(noise(1000, 1000)[..., 0]).save(f"a.{form}")
    put(mask, Path(f"a.{form}"))
    get, fetched = obstore.get_range, list[int]()

    def count(*args: Any, **how: Any) -> Any:
        fetched.append(how["end"] - how["start"])
        return get(*args, **how)

    monkeypatch.setattr(obstore, "get_range", count)
    assert look(mask) == ((1000, 1000), "") == look(Path(f"a.{form}"))
    assert 0 < sum(fetched) < 300_000 < Path(f"a.{form}").stat().st_size
