"""A window of a file has the pixels that the whole file has there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.extras.windows.scenes import TILED, check, config_of, draw_scene
from tests.maps import write_map
from tests.object_store import MemoryBucket
from unet_ddp.checks.check import prepare_data
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.data.readers import pillow
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source, read_mask
from unet_ddp.errors import UserError
from unet_ddp.extras.geo.windows import MapWindows
from unet_ddp.extras.windows.paths import Window
from unet_ddp.extras.windows.reader import open_scene
from unet_ddp.files import as_path, cache_folder

PART = Window(70, 33, 50, 61)
LAST = Window(100, 140, 28, 20)  # to the scene's corner


def image_of(kind: str, folder: Path) -> tuple[Path, ImageFormat]:
    """An image (128, 160) of a kind, and the format as which it is read."""
    pixels, mask = draw_scene(1, 128, 160)
    deep = pixels.astype(np.uint16) * 257
    path, form = folder / f"a.{kind.split()[0]}", ImageFormat(3)
    match kind:
        case "tif tiled":
            write_map(path, pixels, **TILED)
        case "tif strips of 16 bit":
            write_map(path, deep, compress="lzw", predictor=2)
            form = ImageFormat(3, "uint16")
        case "tif of 5 bands apart":
            write_map(path, np.repeat(deep, 2, axis=2)[..., :5], interleave="band", **TILED)
            form = ImageFormat(5, "uint16")
        case "tif with alpha":
            write_map(
                path, np.dstack([pixels, 255 * mask]), photometric="rgb", alpha="yes", **TILED
            )
            form = ImageFormat(4)
        case "tif of floats":
            write_map(path, pixels[..., 0] / np.float32(255), nodata=-1, **TILED)
            form = ImageFormat(1, "float32", nodata=-1.0, fill=(0.0,))
        case "tif of 1 bit":
            Image.fromarray(mask.astype(bool)).save(path)
        case "npy":
            np.save(path, np.moveaxis(deep, -1, 0))
            form = ImageFormat(3, "uint16")
        case "png in grey":
            Image.fromarray(pixels[..., 0]).save(path)
        case _:
            Image.fromarray(pixels).save(path)
    return path, form


@pytest.mark.parametrize(
    "kind",
    ["tif tiled", "tif strips of 16 bit", "tif of 5 bands apart", "tif with alpha", "tif of floats", "tif of 1 bit",
     "npy", "png", "png in grey", "jpg"],
)  # fmt: skip
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_part_of_an_image_is_that_of_the_whole(tmp_path: Path, kind: str, scale: float) -> None:
    path, form = image_of(kind, tmp_path)
    window = Window(64, 32, 64, 96)
    with Source(path) as source, Source(window.of(path)) as part:
        whole, nodata = source.image(form, scale=scale)
        pixels, nodata_mask = part.image(form, scale=scale)
        assert (part.header.dtype, part.header.channels) == (
            source.header.dtype,
            source.header.channels,
        )
        assert part.header.nodata == source.header.nodata
        assert part.header.size == (64, 96)
    rows, columns = (
        slice(int(each.start * scale), int(each.stop * scale))
        for each in (window.rows, window.columns)
    )
    np.testing.assert_array_equal(pixels, whole[rows, columns])
    assert (nodata is None) is (nodata_mask is None)


def mask_of(kind: str, path: Path) -> None:
    _, mask = draw_scene(2, 128, 160)
    match kind:
        case "tif":
            write_map(path, mask, **TILED)
        case "palette tif":
            write_map(path, mask, photometric="palette", **TILED)
            from tests.maps import rasterio

            with rasterio.open(path, "r+") as dataset:
                dataset.write_colormap(1, {0: (0, 0, 0, 255), 1: (9, 200, 30, 255)})
        case "palette png":
            image = Image.fromarray(mask, "P")
            image.putpalette([0, 0, 0, 9, 200, 30])
            image.save(path)
        case "colours":
            Image.fromarray(np.array([[0, 0, 0], [9, 200, 30]], np.uint8)[mask]).save(path)
        case "numbers":
            np.save(path, mask.astype(np.int64) * 70_000)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("tif", "a.tif"), ("palette tif", "a.tif"), ("palette png", "a.png"), ("colours", "a.png"), ("colours", "a.tif"), ("numbers", "a.npy")],
)  # fmt: skip
def test_a_part_of_a_mask_is_that_of_the_whole(tmp_path: Path, kind: str, name: str) -> None:
    path = tmp_path / name
    mask_of(kind, path)
    whole = read_mask(path)
    for window in (PART, LAST):
        part = window.of(path)
        np.testing.assert_array_equal(read_mask(part), whole[window.rows, window.columns])
        with Source(path) as source, Source(part) as other:
            assert other.header.palette == source.header.palette or source.header.palette is None
            assert other.header.has_colour_values == source.header.has_colour_values


def test_a_format_that_is_read_whole_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again when the file changes."""
    path, form = image_of("jpg", tmp_path)
    decoded = []
    read = pillow.PillowFile.read
    monkeypatch.setattr(
        pillow.PillowFile, "read", lambda self, wanted: decoded.append(1) or read(self, wanted)
    )

    def look(window: Window) -> np.ndarray:
        with Source(window.of(path)) as part:
            return part.image(form)[0]

    first = look(PART)
    look(LAST)
    assert len(decoded) == 1
    caches = cache_folder()
    assert caches is not None and len([*(caches / "scenes").glob("*.npy")]) >= 1
    pixels, _ = draw_scene(8, 128, 160)
    Image.fromarray(pixels).save(path, quality=80)
    assert (look(PART) != first).any() and len(decoded) == 2


def test_a_cache_that_can_not_be_written_is_one_line_of_all_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which names what helps: another cache, or scenes that need none."""
    for kind, pixels in zip(("imgs", "masks"), draw_scene(1, 128, 128), strict=True):
        (tmp_path / kind).mkdir()
        Image.fromarray(pixels).save(tmp_path / kind / "a.png")
    (tmp_path / "cache").touch()  # a file, in which there is no folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UserError) as caught:
        prepare_data(config_of(tmp_path, window=64, validation=0), parts=DATA_PARTS, seed=0)
    assert str(caught.value) == (
        f"{tmp_path}/cache/unet_ddp/scenes: can't be written: Not a directory; name another folder with "
        "XDG_CACHE_HOME, or save scenes as TIFF, which needs no copy"
    )


def test_a_small_file_may_hold_a_large_mask(tmp_path: Path) -> None:
    """Read whole, it would be refused, as it may be a bomb; a window of it is small."""
    path = write_map(
        tmp_path / "a.tif",
        np.zeros((18_000, 18_000), np.uint8),
        **{**TILED, "blockxsize": 512, "blockysize": 512},
    )
    assert path.stat().st_size < 1 << 20
    assert not read_mask(Window(17_000, 100, 64, 64).of(path)).any()
    with pytest.raises(UserError, match="too large to open safely"):
        read_mask(path)


def test_a_corrupt_tile_is_named_with_its_place(tmp_path: Path) -> None:
    path, form = image_of("tif tiled", tmp_path)
    content = bytearray(path.read_bytes())
    content[-9000:] = bytes(9000)
    path.write_bytes(content)
    with Source(LAST.of(path)) as part, pytest.raises(UserError) as caught:
        part.image(form)
    assert str(caught.value).startswith(
        f"{path} (rows 100 to 127, columns 140 to 159): corrupt or truncated ("
    )
    with Source(Window(0, 0, 32, 32).of(path)) as part:  # the first tiles are as they were
        assert part.image(form)[0].shape == (32, 32, 3)


@pytest.mark.parametrize("name", ["a.window", "b.tif#0+0+5+5.window", "a.tif#0+0+5.window"])
def test_a_path_that_names_no_window_is_one_line(tmp_path: Path, name: str) -> None:
    write_map(tmp_path / "a.tif", np.zeros((64, 64), np.uint8))
    with Source(tmp_path / name) as part, pytest.raises(UserError) as caught:
        part.mask()
    assert str(tmp_path / name.partition("#")[0]) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_of_an_object_only_the_tiles_of_a_window_are_fetched(
    tmp_path: Path, memory_store: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    random = np.random.default_rng(0)
    pixels = random.integers(0, 255, (1024, 1024, 3), np.uint8)
    local = write_map(tmp_path / "a.tif", pixels, **TILED)
    obstore.put(memory_store.store, "set/a.tif", local)
    fetched: list[int] = []
    get_range = obstore.get_range

    def counted(*args: Any, **how: Any) -> Any:
        found = get_range(*args, **how)
        fetched.append(len(found))
        return found

    monkeypatch.setattr(obstore, "get_range", counted)
    window = Window(128, 256, 128, 128)
    for _ in range(2):
        with Source(window.of(as_path("s3://bucket/set/a.tif"))) as part:
            np.testing.assert_array_equal(
                part.image(ImageFormat(3))[0], pixels[window.rows, window.columns]
            )
    assert sum(fetched) < local.stat().st_size / 5
    assert memory_store.count_requests() < 12


def test_other_objects_are_refused_in_one_line(tmp_path: Path, memory_store: MemoryBucket) -> None:
    import obstore

    path, _ = image_of("png", tmp_path)
    obstore.put(memory_store.store, "set/a.png", path)
    with (
        pytest.raises(UserError) as caught,
        Source(PART.of(as_path("s3://bucket/set/a.png"))) as part,
    ):
        part.mask()
    assert str(caught.value) == (
        "s3://bucket/set/a.png: windows of objects are read of TIFFs alone; save it as one, in tiles"
    )


def test_a_scene_stays_open_in_one_thread(tmp_path: Path) -> None:
    path, _ = image_of("tif tiled", tmp_path)
    assert open_scene(path) is open_scene(path)
    other: list[object] = []
    from threading import Thread

    thread = Thread(target=lambda: other.append(open_scene(path)))
    thread.start()
    thread.join()
    assert other[0] is not open_scene(path)


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")  # Pillow's
@pytest.mark.parametrize("kind", ["png", "tif tiled", "palette", "transparent palette"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_part_is_converted_to_other_channels_as_the_whole_is(
    tmp_path: Path, kind: str, channels: int
) -> None:
    """Also a PNG with alpha, which is decoded once for all of them."""
    path, _ = image_of(kind, tmp_path) if "palette" not in kind else (tmp_path / "a.png", None)
    if "palette" in kind:
        opacity = {"transparency": bytes([9, 0, 99])} if kind != "palette" else {}
        Image.open(image_of("png", tmp_path)[0]).quantize(17).save(path, **opacity)
    elif kind == "png":
        image = Image.open(path)
        image.putalpha(Image.fromarray(draw_scene(4, 128, 160)[0][..., 0]))
        image.save(path)
    with Source(path) as source, Source(PART.of(path)) as part:
        whole, _ = source.image(ImageFormat(channels))
        pixels, _ = part.image(ImageFormat(channels))
    np.testing.assert_array_equal(pixels, whole[PART.rows, PART.columns])


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_a_thumbnail_shows_the_colours_of_a_palette(tmp_path: Path, suffix: str) -> None:
    """Two indices of one colour look alike."""
    path = tmp_path / f"a.{suffix}"
    image = Image.fromarray(draw_scene(2, 128, 160)[1], "P")
    image.putpalette([90, 90, 90] * 2)
    image.save(path)
    with Source(PART.of(path)) as part, part.reading() as opened:
        thumbnail = opened.read_thumbnail(8)
    np.testing.assert_allclose(thumbnail, 90, atol=0.01)


def test_a_png_with_alpha_is_decoded_once_for_the_look_for_data_and_for_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, mask = draw_scene(1, 128, 128)
    for kind, pixels in (("imgs", np.dstack([image, 255 * mask])), ("masks", mask)):
        (tmp_path / kind).mkdir()
        Image.fromarray(pixels).save(tmp_path / kind / "a.png")
    decoded = []
    read = pillow.PillowFile.read
    monkeypatch.setattr(
        pillow.PillowFile, "read", lambda self, wanted: decoded.append(1) or read(self, wanted)
    )
    data, report = check(tmp_path, window=64, validation=0, channels=3)
    assert not report.problems and len(data.table.pairs) == 4 and len(decoded) == 1


def test_a_tiff_whose_name_is_not_utf_8_is_read_by_windows(tmp_path: Path) -> None:
    path, form = image_of("tif tiled", tmp_path)
    odd = tmp_path / os.fsdecode(b"caf\xe9.tif")
    path.rename(odd)
    for _ in range(2):
        with Source(PART.of(odd)) as part:
            pixels, _ = part.image(form)
        np.testing.assert_array_equal(pixels, draw_scene(1, 128, 160)[0][PART.rows, PART.columns])
    assert isinstance(open_scene(odd), MapWindows)  # not a decoded copy


def test_a_folder_whose_name_is_not_utf_8_may_be_the_working_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, form = image_of("tif tiled", tmp_path)
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    path.rename(folder / path.name)
    monkeypatch.chdir(folder)
    with Source(PART.of(Path(path.name))) as part:
        pixels, _ = part.image(form)
    np.testing.assert_array_equal(pixels, draw_scene(1, 128, 160)[0][PART.rows, PART.columns])


def test_all_objects_together_keep_few_bytes(tmp_path: Path, memory_store: MemoryBucket) -> None:
    """Each scene stays open, so what is kept for one would be kept for hundreds."""
    import obstore

    from unet_ddp.extras.cloud import ranges

    local, form = image_of("tif tiled", tmp_path)
    for k in range(3):
        obstore.put(memory_store.store, f"set/{k}.tif", local)
        with Source(PART.of(as_path(f"s3://bucket/set/{k}.tif"))) as part:
            part.image(form)
    kept = ranges.read_block.cache_info()
    assert kept.currsize >= 3 and kept.maxsize is not None
    assert kept.maxsize * ranges.BLOCK <= 1 << 24
