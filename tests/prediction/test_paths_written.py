"""Names of outputs, and what keeps them from being written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.object_store import MemoryBucket
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url, put
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.files import as_path
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.existing import find_existing, look_at
from unet_ddp.prediction.outputs.base import ImageFiles, Output, open_outputs
from unet_ddp.prediction.outputs.mask import MaskFile, write_mask
from unet_ddp.prediction.paths import name_outputs

LABELS = Labels((0, 1), names=("road", "car"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.jpg").write_bytes(b"image")
    Path("q").mkdir()
    Path("q/b.png").write_bytes(b"image")
    Path("best.pt").write_bytes(b"model")
    return tmp_path


def outputs(*images: str, **options: object) -> list[ImageFiles]:
    return name(PredictConfig(**{"inputs": images, **options}), images, LABELS)  # type: ignore[arg-type]


def name(config: PredictConfig, images: Sequence[str], labels: Labels) -> list[ImageFiles]:
    kinds = open_outputs(config, labels, ImageFormat(3))
    return name_outputs([*map(Path, images)], config, labels, kinds, models=[Path("best.pt")])


def test_masks_go_next_to_their_images_or_to_a_folder() -> None:
    first, second = outputs("a.jpg", "q/b.png")
    masks = Path("a_mask.png"), Path("q/b_mask.png")
    assert first == ImageFiles(0, Path("a.jpg"), first.source, masks[0], "a.jpg", [masks[0]])
    assert second == ImageFiles(1, Path("q/b.png"), second.source, masks[1], "b.png", [masks[1]])
    assert (first.source.path, second.source.path) == (first.image, second.image)
    in_folder = outputs("a.jpg", "q/b.png", output="out", mask_format="tif")
    assert [files.mask for files in in_folder] == [Path("out/a_mask.tif"), Path("out/b_mask.tif")]
    assert [files.mask for files in outputs("a.jpg", output="q")] == [Path("q/a_mask.png")]
    assert [files.mask for files in outputs("a.jpg", output="new")] == [Path("new/a_mask.png")]
    Path("d.tif").mkdir()
    assert outputs("a.jpg", output="d.tif")[0].mask == Path("d.tif/a_mask.png")
    two = outputs("a.jpg", "q/b.png", output="d.tif")
    assert [files.mask for files in two] == [Path("d.tif/a_mask.png"), Path("d.tif/b_mask.png")]
    dotted = outputs("a.jpg", "q/b.png", output="masks.v2")
    assert dotted[0].mask == Path("masks.v2/a_mask.png")


def test_masks_of_several_classes_of_objects_are_tiffs() -> None:
    """Their values need 32 bit; numbers alone fit into a PNG."""
    for names, ending in ((("car",), "png"), (("car", "tree"), "tif")):
        config = PredictConfig(("a.jpg",))
        (files,) = name(config, ["a.jpg"], ObjectLabels.of(names))
        assert files.mask == Path(f"a_mask.{ending}")
    for flags in ({"output": "a.png"}, {"mask_format": "png"}):
        config = PredictConfig(("a.jpg",), **flags)
        with pytest.raises(
            UserError, match="png: values of several classes of objects need 32 bit"
        ):
            name(config, ["a.jpg"], ObjectLabels.of(names))


def test_annotations_that_a_person_may_have_made_are_kept() -> None:
    """A job that was interrupted leaves none without the mask: Labelme's file is written last."""
    flags = {"annotations": "labelme", "skip_existing": True, "overlay": True}
    Path("a.json").write_text("{}")  # all of a; b has none
    for name in ("a_mask.png", "a_overlay.png"):
        write_mask(np.zeros((4, 4), np.uint8), LABELS, Path(name))
    assert Path("a.json") in outputs("a.jpg", "b.jpg", **flags)[0].written
    for gone in ("a_overlay.png", "a_mask.png"):
        Path(gone).unlink()
        with pytest.raises(
            UserError,
            match=r"^a\.json: already exists; use another --output, or --overwrite in place of",
        ):
            outputs("a.jpg", "b.jpg", **flags)


@pytest.mark.parametrize("name", ["x.png", "x.TIF", "x.tiff"])
def test_one_mask_may_have_any_name_that_keeps_its_values(name: str) -> None:
    assert outputs("a.jpg", output=name)[0].mask == Path(name)


def test_the_other_outputs_are_named_after_the_image() -> None:
    (files,) = outputs("a.jpg", overlay=True, probabilities="png")
    assert files.written == [
        Path("a_mask.png"), Path("a_overlay.png"),
        Path("a_probability_road.png"), Path("a_probability_car.png"),
    ]  # fmt: skip
    (files,) = outputs("a.jpg", output="q/x_mask.png", overlay=True, probabilities="npy")
    assert files.written == [
        Path("q/x_mask.png"), Path("q/x_overlay.png"), Path("q/x_probabilities.npy"),
    ]  # fmt: skip
    (files,) = outputs("a.jpg", output="q/x.png", overlay=True)
    assert files.written == [Path("q/x.png"), Path("q/x_overlay.png")]


@pytest.mark.parametrize(
    ("options", "existing", "message"),
    [
        (
            {},
            "a_mask.png",
            "a_mask.png: already exists; use --skip-existing .*--overwrite, or another --output",
        ),
        (
            {"overlay": True},
            "a_mask.png a_overlay.png",
            "a_mask.png: already exists; use --skip-existing",
        ),
        ({"rle": "l.csv"}, "l.csv", "l.csv: already exists; use --overwrite, or another --rle"),
        ({"polygons": "l.json"}, "l.json", "l.json: already exists.* --polygons"),
    ],
)
def test_nothing_is_replaced_without_overwrite(
    options: dict[str, object], existing: str, message: str
) -> None:
    names = existing.split()
    for name in names:
        Path(name).touch()
    with pytest.raises(UserError, match=message):
        outputs("a.jpg", **options)
    assert outputs("a.jpg", **options, overwrite=True)
    assert outputs("a.jpg", **options, skip_existing=True)
    Path(names[-1]).unlink()
    assert outputs("a.jpg", **options)  # what is missing is written, if the rest is the same


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (["a.jpg"], {"output": "x.jpg"}, r"--output x\.jpg: .* \.png or \.tif"),
        (["a.jpg", "q/b.png"], {"output": "x.PNG"}, r"^--output x\.PNG: is a file's name, for 2 images; name a folder$"),
        (["a.jpg", "q/b.png"], {"output": "x.jpg"}, r"^--output x\.jpg: is a file's name, for 2 images"),
        (["a.jpg", "q/a.png"], {"output": "o"},
         r"^a\.jpg and q/a\.png would both write o/a_mask\.png; .* --output"),
        (["q/a.bmp", "q/a.png"], {"output": "o"}, r"o/a_mask\.png; predict one type alone, as q/\*\.bmp"),
        (["a.jpg"], {"output": "a.jpg/x"}, r"a\.jpg/x: can't be written: .*a\.jpg is a file.* with --output"),
        (["a.jpg"], {"rle": "a.jpg/x.csv"}, "a.jpg: can't be written: a.jpg is a file.* with --rle"),
        (["a.jpg"], {"polygons": "q"}, "--polygons q: is a folder"),
    ],
)  # fmt: skip
def test_mistakes_are_named(images: list[str], options: dict[str, object], message: str) -> None:
    Path("link.png").symlink_to("q/b.png")
    with pytest.raises(UserError, match=message):
        outputs(*images, **options)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        ("q/b.png", {"output": "q/b.png"}, "--output q/b.png: would replace the image q/b.png"),
        ("q/b.png", {"output": "q/../q/b.png"}, "--output q/../q/b.png: would replace the image"),
        ("q/b.png", {"output": "link.png"}, "--output link.png: would replace the image q/b.png"),
        ("q/b.png", {"output": "hard.png"}, "--output hard.png: would replace the image q/b.png"),
        ("link.png", {"output": "q/b.png"}, "--output q/b.png: would replace the image link.png"),
        ("a.jpg a_overlay.png", {"overlay": True},
         "--output a_overlay.png: would replace the image a_overlay.png"),
        ("a.jpg a_overlay.png", {"overlay": True, "overwrite": False, "skip_existing": True},
         "--output a_overlay.png: would replace the image a_overlay.png"),
        ("a.jpg a_probability_car.png", {"probabilities": "png"}, "--output a_probability_car.png: "),
        ("a.jpg missing.png", {"output": None, "rle": "missing.png"}, "--rle missing.png: would repl"),
        ("a.jpg", {"rle": "a.jpg"}, "--rle a.jpg: would replace the image a.jpg"),
        ("a.jpg", {"rle": "folder/a.jpg"}, "--rle folder/a.jpg: would replace the image a.jpg"),
        ("a.jpg", {"rle": "best.pt"}, "--rle best.pt: would replace the model best.pt"),
        ("a.jpg", {"polygons": "./best.pt"}, "--polygons best.pt: would replace the model best.pt"),
        ("a.jpg", {"inputs": ("l.txt",), "rle": "l.txt"}, "--rle l.txt: would replace the input l.txt"),
        ("a.jpg", {"rle": "l.csv", "polygons": "folder/l.csv"},
         "--rle and --polygons would both write folder/l.csv; name another file"),
        ("a.jpg", {"rle": "a_mask.png"}, "a.jpg and --rle would both write a_mask.png"),
        ("a.jpg", {"polygons": "a_overlay.png", "overlay": True},
         "a.jpg and --polygons would both write a_overlay.png"),
        ("a.jpg folder/a.png", {}, "a.jpg and folder/a.png would both write folder/a_mask.png"),
    ],
)  # fmt: skip
def test_no_output_replaces_an_input_or_another_output(
    here: Path, images: str, options: dict[str, object], message: str
) -> None:
    """Not even with --overwrite, and whatever path leads there."""
    Path("link.png").symlink_to("q/b.png")
    Path("hard.png").hardlink_to("q/b.png")
    Path("folder").symlink_to(here)
    for name in ("a_overlay.png", "a_probability_car.png", "l.txt", "a.png"):
        Path(name).touch()
    with pytest.raises(UserError) as caught:
        outputs(*images.split(), **{"overwrite": True, **options})
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_the_folder_of_each_file_of_an_own_output_is_checked_before_the_first_image() -> None:
    class Elsewhere(Output):
        def files(self, image: ImageFiles) -> Sequence[Path]:
            return [Path("a.jpg/size.json")]

    config = PredictConfig(("q/b.png",))
    kinds = [Elsewhere(config, LABELS, ImageFormat(3))]
    with pytest.raises(UserError, match=r"a\.jpg: can't be written: .*a\.jpg is a file"):
        name_outputs([Path("q/b.png")], config, LABELS, kinds)


def test_an_image_is_done_when_all_its_files_exist() -> None:
    (files,) = outputs("a.jpg", overlay=True, probabilities="npy")
    masks = MaskFile(PredictConfig(("a.jpg",)), LABELS, ImageFormat(3))
    assert look_at([files], masks) == []  # it has no file
    for path in files.written[:2]:
        write_mask(np.zeros((4, 4), np.uint8), LABELS, path)
        (found,) = look_at([files], masks)
        assert not found.is_done
    np.save(files.written[2], np.zeros(3))
    assert [found.is_done for found in look_at([files], masks)] == [True]
    more = replace(files, written=[*files.written, Path("x")])
    assert [found.is_done for found in look_at([more], masks)] == [False]


@pytest.mark.parametrize("count", [2, 30])
def test_objects_exist_by_question_or_by_listing(memory_store: MemoryBucket, count: int) -> None:
    folder = as_path(f"s3://bucket/names{count}")
    for name in ("0_mask.png", "1_mask.png", "sub/0_mask.png"):
        put(Url(folder / name), b"")
    paths = [folder / f"{n}_mask.png" for n in range(1, count + 1)]
    before = memory_store.count_requests()
    assert find_existing([*paths, Path("a.jpg"), Path("missing")]) == {paths[0], Path("a.jpg")}
    assert memory_store.count_requests() - before == (2 if count == 2 else 1)


def test_what_a_killed_job_left_is_removed() -> None:
    ours = 2**22 + 1  # above any process id
    stale = [f".a_mask.png.{ours}.x1.tmp", f".a_overlay.png.{ours}.x1.tmp",
             f".a_probabilities.npy.{ours}.x1.tmp", f".l.csv.{ours}.x1.tmp"]  # fmt: skip
    kept = [f".a_mask.png.{os.getpid()}.x1.tmp", f".other.png.{ours}.x1.tmp"]
    for name in (*stale, *kept):
        Path(name).touch()
    outputs("a.jpg", overlay=True, probabilities="npy", rle="l.csv")
    assert {path.name for path in Path().glob(".*")} == set(kept)


@pytest.mark.parametrize("flag", ["rle", "polygons"])
def test_an_empty_name_as_of_an_unset_variable_is_no_file(flag: str) -> None:
    with pytest.raises(UserError, match=rf"^--{flag} \.: is a folder; give a file"):
        outputs("a.jpg", **{flag: ""})
