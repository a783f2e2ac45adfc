"""A scene in parts has the mask of the whole, by any number of processes, and also after a stop."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tqdm import tqdm

from tests.commands.handing import ArrivedError, watching
from tests.extras.scenes.small_scenes import (
    HEIGHT,
    TILE,
    WIDTH,
    die_after,
    predict_parts,
    small_is_large,
)
from tests.maps import rasterio, write_map
from tests.prediction.models import noise, write_model, write_photo
from tests.prediction.test_predict import run
from tests.ranks import Ranks, warm_context
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.extras.scenes import parts, process
from unet_ddp.prediction.pipeline import Outcome
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.summary import print_outcomes

PARTS = 27  # nine rows of three blocks


def write_scene(folder: Path, *, classes: int = 2, scale: float = 1.0, **options: Any) -> list[str]:
    """A map with a corner without data, and a network; return the command's words."""
    write_model(folder / "net.pt", Labels(tuple(range(classes))), scale=scale)
    image = noise(HEIGHT, WIDTH)
    image[:30, :140] = 0
    write_map(folder / "scene.tif", image, **{"nodata": 0, "tiled": True, "blockxsize": 64, "blockysize": 64, **options})  # fmt: skip
    return ["scene.tif", "--model", "net.pt", *TILE]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return write_scene(tmp_path)


def full_disk(*_: Any) -> None:
    raise UserError("scene_mask.tif: can't be written: No space left on device")


def folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*.parts-*"))


@pytest.mark.parametrize(("classes", "scale"), [(2, 1.0), (3, 0.6), (2, 0.37)])
def test_a_mask_of_parts_is_that_of_the_whole_by_one_process_or_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Ranks, classes: int, scale: float
) -> None:
    """Byte for byte; the lines that are printed are the same, too."""
    monkeypatch.chdir(tmp_path)
    argv = [*write_scene(tmp_path, classes=classes, scale=scale), "-o"]
    argv_of = {name: [*argv, f"{name}.tif"] for name in ("whole", "one", "wide", "two")}
    assert run(*argv_of["whole"]) == 0
    with rasterio.open("whole.tif") as mask:
        ids = mask.read(1)
        assert mask.nodata == 255 and (ids[:30, :140] == 255).all()
        assert len(np.unique(ids)) == classes + 1  # so that a part at a wrong place is seen
    with small_is_large() as written:
        assert run(*argv_of["one"]) == 0
    assert len(written) == PARTS
    with small_is_large(WIDTH) as written:
        assert run(*argv_of["wide"]) == 0
    assert len(written) == PARTS // 3
    found = ranks.run(2, predict_parts, str(tmp_path), argv_of["two"])
    assert [each[0] for each in found] == [0, 0] and [each[3] for each in found] == [13, 14]
    assert found[0][1].count("\n") == 2 and not found[1][1] + found[0][2] + found[1][2]
    expected = Path("whole.tif").read_bytes()
    for name in ("one", "wide", "two"):
        assert Path(f"{name}.tif").read_bytes() == expected, name
    assert not folders(tmp_path)


def test_a_png_of_parts_has_the_pixels_and_shares_of_a_tiff(
    scene: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pixels without data are in neither; of one process without parts, byte for byte."""
    write_model(tmp_path / "net.pt", Labels((0, 1), names=("ground", "roof")), scale=1.0)
    lines, values = [], []
    for name in ("mask.tif", "mask.png"):
        with small_is_large() as written:
            assert run(*scene, "-o", name) == 0
        assert len(written) == PARTS
        lines.append(capsys.readouterr().out.splitlines()[-1].partition(": ")[2])
        values.append(np.asarray(Image.open(name)))
    assert lines[0] == lines[1] and "roof" in lines[0]
    assert np.array_equal(*values) and (values[1][:30, :140] == 255).all()
    assert run(*scene, "-o", "whole.png") == 0
    assert Path("whole.png").read_bytes() == Path("mask.png").read_bytes()


@pytest.mark.processes
def test_parts_of_a_job_that_was_killed_are_kept(
    scene: list[str], tmp_path: Path, ranks: Ranks
) -> None:
    assert run(*scene, "-o", "expected.tif") == 0
    argv = [*scene, "-o", "mask.tif"]
    process = warm_context().Process(target=die_after, args=(5, str(tmp_path), argv))
    process.start()
    process.join()
    assert process.exitcode == -9 and not Path("mask.tif").exists() and len(folders(tmp_path)) == 1
    found = ranks.run(2, predict_parts, str(tmp_path), [*argv, "--skip-existing"])
    assert [each[0] for each in found] == [0, 0] and sum(each[3] for each in found) == PARTS - 5
    assert (
        "scene.tif: keeping 5 of 27 parts, which a job that stopped has predicted\n" in found[0][1]
    )
    assert Path("mask.tif").read_bytes() == Path("expected.tif").read_bytes()
    assert not folders(tmp_path)


def test_parts_of_another_job_are_named_and_stay(
    scene: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full disk leaves them, in one line; another threshold, network or scene makes another job."""
    argv = [*scene, "-o", "mask.tif"]
    write = parts.np.savez_compressed
    done = list[int]()

    def fail(*args: Any, **arrays: Any) -> None:
        if len(done) == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done.append(0)
        write(*args, **arrays)

    with small_is_large() as written:
        with monkeypatch.context() as patch:
            patch.setattr(parts.np, "savez_compressed", fail)
            assert run(*argv) == 2
        errors = capsys.readouterr().err
        assert errors == (
            "error: mask.tif: can't be written: No space left on device; make room, or use another --output\n"
        )
        (left,) = folders(tmp_path)
        assert run(*argv, "--threshold", "0.4") == 0
        assert f"warning: {left}: parts of another job for this mask" in capsys.readouterr().out
        assert folders(tmp_path) == [left] and len(written) == 4 + PARTS
        os.utime("scene.tif", (0, 0))
        assert run(*argv, "--overwrite") == 0 and len(written) == 4 + 2 * PARTS
        write_model(tmp_path / "net.pt", Labels((0, 1)), scale=1.0, seed=4)
        assert run(*argv, "--overwrite") == 0 and len(written) == 4 + 3 * PARTS
        assert folders(tmp_path) == [left]
        other = ["other.tif", *argv[1:]]  # of the same size and time
        write_map(tmp_path / other[0], noise(HEIGHT, WIDTH, 5))
        monkeypatch.setattr(process, "find_stamp", lambda path: (1, 1))
        written.clear()
        with monkeypatch.context() as patch:
            patch.setattr(parts.np, "savez_compressed", fail)
            done.clear()
            assert run(*argv, "--overwrite") == 2
        assert run(*other, "--overwrite") == 0 and len(written) == 4 + PARTS


def test_a_scene_too_large_for_the_memory_is_one_line_and_the_others_are_predicted(
    scene: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    write_photo(tmp_path / "photo.png")
    scores = Predictor.scores

    def fail(self: Predictor, windows: Any) -> Any:
        if windows[0].shape[:2] == (64, 64):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return scores(self, windows)

    monkeypatch.setattr(Predictor, "scores", fail)
    with small_is_large():
        run(scene[0], "photo.png", *scene[1:], "-o", "out")
    said = capsys.readouterr()
    assert "scene.tif: out of memory even in windows of 64 pixels" in said.out + said.err
    assert Path("out/photo_mask.png").exists() and "Traceback" not in said.err


def test_a_mask_that_is_there_is_skipped_kept_or_refused(
    scene: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_is_large() as written:
        assert run(*scene) == 0
        assert run(*scene, "--skip-existing") == 0 and len(written) == PARTS
        assert "1 image skipped: the files already exist" in capsys.readouterr().out
        whole = Path("scene_mask.tif").read_bytes()
        Path("scene_mask.tif").write_bytes(whole[: len(whole) // 2])
        assert run(*scene, "--skip-existing") == 0 and Path("scene_mask.tif").read_bytes() == whole
        assert "predicting again 1 file" in capsys.readouterr().out
        write_photo(tmp_path / "photo.png")  # what is missing is written
        assert run(*scene[:1], "photo.png", *scene[1:]) == 0
        assert "kept scene_mask.tif, which is the same" in capsys.readouterr().out
        Path("photo_mask.png").unlink()
        assert run(*scene[:1], "photo.png", *scene[1:], "--threshold", "0.1") == 2
        assert "scene_mask.tif: already exists, and differs" in capsys.readouterr().err
        assert not Path("photo_mask.png").exists()


def test_a_damaged_scene_is_counted_and_the_others_are_predicted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: Ranks,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A tile in the last rows is damaged, which one of two ranks reads."""
    monkeypatch.chdir(tmp_path)
    argv = write_scene(tmp_path, compress="deflate")
    content = bytearray(Path("scene.tif").read_bytes())
    with rasterio.open("scene.tif") as dataset:
        start = int(dataset.get_tag_item("BLOCK_OFFSET_4_6", "TIFF", bidx=1))
    content[start : start + 40] = bytes(40)
    Path("bad.tif").write_bytes(content)
    argv[:1] = ["bad.tif", "scene.tif"]
    found = ranks.run(2, predict_parts, str(tmp_path), [*argv, "-o", "masks"])
    assert [each[0] for each in found] == [1, 1], found
    assert found[0][2].count("error: bad.tif: ") == 1, found[0][2]
    assert Path("masks/scene_mask.tif").exists() and not Path("masks/bad_mask.tif").exists()
    capsys.readouterr()
    with small_is_large() as written:
        assert run(*argv[:1], *argv[2:]) == 2  # alone
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: bad.tif: ") and 0 < len(written) < PARTS


def test_a_scene_whose_mask_has_too_long_a_name_is_counted_and_the_others_are_predicted(
    scene: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    long = f"{'x' * 228}.tif"
    shutil.copyfile("scene.tif", long)
    with small_is_large() as written:
        assert run(long, *scene, "-o", "masks") == 1
        assert len(written) == PARTS and Path("masks/scene_mask.tif").exists()
        (error, _) = capsys.readouterr().err.splitlines()
        assert error.startswith(f"error: {long}: the name of masks/") and "too long" in error
        assert run(long, *scene[1:], "-o", "masks") == 2  # alone


def test_the_bar_of_several_scenes_counts_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All processes predict each scene; of other images each process has its share."""
    steps = list[float | None]()

    class Bar(tqdm):  # type: ignore[type-arg]
        def update(self, n: float | None = 1) -> bool | None:
            steps.append(n)
            return super().update(n)

    monkeypatch.setattr("unet_ddp.prediction.summary.tqdm", Bar)
    job: Any = SimpleNamespace(files=[0] * 6, world=SimpleNamespace(is_main=True, size=4))
    outcomes = [Outcome("a", is_shared=True), Outcome("b", is_shared=True), Outcome("c")]
    print_outcomes(job, outcomes)
    assert steps == [1, 1, 4]


def test_a_damaged_part_is_named(
    scene: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with small_is_large() as written:
        with monkeypatch.context() as patch:
            patch.setattr("unet_ddp.extras.scenes.process.write_mask", full_disk)
            assert run(*scene) == 2
        part = written[3]
        content = bytearray(part.read_bytes())
        content[200] ^= 1
        part.write_bytes(content)
        assert run(*scene) == 2
        _, error = capsys.readouterr().err.splitlines()
        assert error.startswith(f"error: {part}: corrupt (")
        part.unlink()
        assert run(*scene) == 0 and len(written) == PARTS + 1


@pytest.mark.parametrize("flag", ["--overlay", "--rle=a.csv", "--mask-format=none"])
def test_other_outputs_take_the_whole(scene: list[str], flag: str) -> None:
    argv = [*scene, flag]
    if "none" in flag:
        argv.append("--overlay")
    with small_is_large() as written:
        assert run(*argv) == 0 and not written


def test_parts_are_kept_for_all_jobs_with_the_same_mask_and_no_other(scene: list[str]) -> None:
    others = ["--tta mirror", "--threshold 0.4", "--overlap 40", "--tile 96"]
    alike = ["", "--workers 1", "--overwrite", "--skip-existing"]
    names = list[str]()

    def note(call: dict[str, Any]) -> None:
        names.append(call["job"])
        raise ArrivedError

    with small_is_large(), watching(parts.Parts, note):
        for words in (*others, *alike):
            assert run(*scene, *words.split()) != 0
    assert len(names) == 8 and len({*names}) == 5 and len({*names[4:]}) == 1


def test_a_scene_whose_mask_exceeds_the_memory_is_large_at_any_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network sees a quarter of its pixels."""
    monkeypatch.chdir(tmp_path)
    argv = write_scene(tmp_path, scale=0.5)
    counts = []
    for most in (WIDTH * HEIGHT, WIDTH * HEIGHT - 1):
        monkeypatch.setattr(process, "IN_MEMORY", most)
        with small_is_large() as written, monkeypatch.context() as patch:
            patch.setattr(process, "LARGE", WIDTH * HEIGHT // 2)
            assert run(*argv, "--overwrite") == 0
        counts.append(len(written))
    assert counts[0] == 0 and counts[1] > 0
