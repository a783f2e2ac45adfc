"""A process's share of a job, from files to outputs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from tests.extras.outputs.test_rle import decode
from tests.prediction.models import CPU, lively_network, load, make_predictor, write_photo
from tests.prediction.outputs.test_own import write_own_output
from unet_ddp.data.readers.read import Source
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.outputs.annotations import LabelmeFiles
from unet_ddp.extras.outputs.probabilities import Probabilities
from unet_ddp.prediction import pipeline as module
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.base import ImageFiles, open_outputs
from unet_ddp.prediction.outputs.mask import MaskFile, write_mask
from unet_ddp.prediction.outputs.overlay import Overlay
from unet_ddp.prediction.outputs.records import Records
from unet_ddp.prediction.paths import find_images, name_outputs
from unet_ddp.prediction.pipeline import (
    Job,
    Outcome,
    begin,
    predict_in_batches,
    process_images,
)
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.threads import in_threads, one_core_each


def new_job(config: PredictConfig, predictor: Predictor, world: World | None = None) -> Job:
    images, outputs = (
        find_images(config.inputs),
        open_outputs(config, predictor.labels, predictor.format),
    )
    files = name_outputs(images, config, predictor.labels, outputs)
    records = [Records(each) for each in outputs if each.path is not None]
    job = Job(config, world or World(), files, predictor, outputs, records)
    return begin(job) if world is None else job


def run(job: Job) -> list[Outcome]:
    """Return the outcomes, once the files of all images are written."""
    with ExitStack() as stack:
        for records in job.records:
            stack.enter_context(closing(records))
        outcomes = list(process_images(job))
        for records in job.records:
            records.merge(World())
    return outcomes


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PredictConfig:
    """Five images, of which the second is none."""
    monkeypatch.chdir(tmp_path)
    for name in "abcde":
        write_photo(Path("p") / f"{name}.png", (30, 40))
    Path("p/b.png").write_bytes(b"no image")
    return PredictConfig(inputs=("p",), output="out")


@pytest.mark.parametrize("batch_size", [None, 2])
def test_each_image_has_its_outcome(photos: PredictConfig, batch_size: int | None) -> None:
    predictor = make_predictor(scale=0.5)
    outcomes = run(new_job(replace(photos, batch_size=batch_size, workers=2), predictor))
    errors = [outcome for outcome in outcomes if outcome.error]
    assert len(outcomes) == 5 and len(errors) == 1 and "p/b.png: " in errors[0].error
    assert not any(outcome.is_skipped or outcome.single_class for outcome in outcomes)
    (line,) = (outcome.line for outcome in outcomes if "c.png" in outcome.line)
    mask = np.asarray(Image.open("out/c_mask.png"))
    assert line == "p/c.png -> out/c_mask.png"
    assert (mask != predictor("p/c.png").ids).mean() < 0.01
    assert {path.name for path in Path("out").iterdir()} == {f"{x}_mask.png" for x in "acde"}


def test_processes_share_the_images(photos: PredictConfig) -> None:
    predictor = make_predictor()
    lines = []
    for rank in range(2):
        outcomes = run(new_job(photos, predictor, World(rank, 2)))
        lines.append([Path(outcome.line.split(" ->")[0]).stem for outcome in outcomes])
        photos = replace(photos, overwrite=True)
    assert lines == [["a", "c", "e"], ["", "d"]]  # "b" is no image


def test_existing_files_are_skipped_and_listed(photos: PredictConfig) -> None:
    predictor = make_predictor()
    run(new_job(photos, predictor))
    Path("out/d_mask.png").unlink()
    before = Path("out/a_mask.png").stat().st_mtime_ns
    job = new_job(replace(photos, skip_existing=True, rle="l.csv"), predictor)
    outcomes = run(job)
    lines = Path("l.csv").read_text().splitlines()[1:]
    assert sum(outcome.is_skipped for outcome in outcomes) == 3
    assert sum(bool(outcome.line) for outcome in outcomes) == 1
    assert Path("out/a_mask.png").stat().st_mtime_ns == before and Path("out/d_mask.png").exists()
    assert [line.split(",")[0] for line in lines] == ["a.png", "c.png", "d.png", "e.png"]
    mask = np.asarray(Image.open("out/a_mask.png"))
    assert np.array_equal(decode(lines[0].split(",")[1], mask.shape, "rows"), mask)


def test_a_mask_of_another_network_for_objects_is_not_listed(photos: PredictConfig) -> None:
    labels = ObjectLabels.of(("car", "tree"))
    predictor = Predictor([load(lively_network(classes=4), labels)], device=CPU)
    write_mask(np.full((30, 40), 7_000_001, np.int32), labels, Path("out/a_mask.tif"))
    config = replace(photos, inputs=("p/a.png",), skip_existing=True, polygons="o.geojson")
    with pytest.raises(UserError, match=r"a_mask\.tif: value 7000001; expected class"):
        run(new_job(config, predictor))


def test_all_outputs_of_an_image(photos: PredictConfig) -> None:
    config = replace(
        photos, inputs=("p/a.png",), overlay=True, probabilities="npy", polygons="o.geojson"
    )
    predictor = make_predictor()
    (outcome,) = run(new_job(config, predictor))
    assert json.loads(Path("o.geojson").read_text())["features"]
    assert outcome.line == "p/a.png -> out/a_mask.png, out/a_overlay.png and 1 more"
    assert {path.name for path in Path("out").iterdir()} == {
        "a_mask.png", "a_overlay.png", "a_probabilities.npy",
    }  # fmt: skip
    probabilities = np.load("out/a_probabilities.npy")
    assert np.array_equal(probabilities, predictor("p/a.png").probabilities)
    photo, overlay = (np.asarray(Image.open(f)) for f in ("p/a.png", "out/a_overlay.png"))
    mask = np.asarray(Image.open("out/a_mask.png"))
    assert np.array_equal(overlay[mask == 0], photo[mask == 0])
    assert (overlay[mask == 1] != photo[mask == 1]).any()


@pytest.mark.parametrize("batch_size", [None, 2])
def test_all_outputs_take_one_pass_of_the_network(
    photos: PredictConfig, batch_size: int | None
) -> None:
    """Of an image in windows, too: mask, overlay, probabilities, rank, run lengths, polygons, an own one."""
    write_own_output(Path("seen.py"))
    write_photo(Path("p/a.png"), (100, 75))
    predictor, passes = make_predictor(tile=64), list[None]()
    predictor.on_window = lambda: passes.append(None)
    config = replace(photos, inputs=("p/a.png",), overlay=True, probabilities="npy", rank="r.csv")
    config = replace(config, polygons="o.geojson", rle="l.csv", batch_size=batch_size)
    (outcome,) = run(new_job(replace(config, write=("seen:Sure",)), predictor))
    assert not outcome.error and len(passes) == 4  # 2 x 2 windows
    assert Path("out/a_sure.json").exists()


def test_the_mask_is_written_last(photos: PredictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its presence tells the next job that all is there, but for what a person may have changed."""
    order: list[str] = []

    @contextmanager
    def watch(*_: object) -> Iterator[Callable[[object], None]]:
        yield lambda band: None
        order.append("Probabilities")

    monkeypatch.setattr(Probabilities, "watch", watch)
    for kind in (MaskFile, Overlay, LabelmeFiles):
        monkeypatch.setattr(kind, "write", lambda self, *_: order.append(type(self).__name__))
    config = replace(photos, inputs=("p/a.png",), overlay=True, probabilities="png")
    run(new_job(replace(config, annotations="labelme"), make_predictor()))
    assert order == ["Probabilities", "Overlay", "MaskFile", "LabelmeFiles"]


def test_one_class_only_is_named(photos: PredictConfig) -> None:
    predictor = make_predictor(threshold=1 - 1e-9)
    (outcome,) = run(new_job(replace(photos, inputs=("p/a.png",)), predictor))
    assert outcome.single_class == "0"


def test_the_error_of_the_only_image_is_the_jobs(photos: PredictConfig) -> None:
    with pytest.raises(UserError, match=r"p/b\.png"):
        run(new_job(replace(photos, inputs=("p/b.png",)), make_predictor()))


@pytest.mark.parametrize(
    ("workers", "count", "cores", "expected"),
    [(3, 5, 8, 3), (None, 5, 8, 5), (None, 5, 2, 2), (None, 1, 8, 1)],
)
def test_threads_are_as_many_as_asked_for_or_as_help(
    photos: PredictConfig, monkeypatch: pytest.MonkeyPatch,
    workers: int | None, count: int, cores: int, expected: int,
) -> None:  # fmt: skip
    used: list[int] = []

    def in_threads(work: Any, items: Any, threads: int) -> Any:
        used.append(threads)
        return map(work, items)

    monkeypatch.setattr(module, "in_threads", in_threads)
    monkeypatch.setattr(World, "cores", property(lambda world: cores))
    predictor = make_predictor()
    job = new_job(replace(photos, workers=workers), predictor)
    run(replace(job, files=job.files[:count] if count > 1 else job.files[2:3]))
    assert set(used) == {expected} and predictor.concurrency == expected


@pytest.mark.parametrize(
    ("device", "batch_size", "expected"),
    [("cpu", None, []), ("cpu", 2, [2]), ("cuda", None, [8]), ("cuda", 3, [3])],
)
def test_batches_are_for_gpus_or_on_request(
    photos: PredictConfig, monkeypatch: pytest.MonkeyPatch,
    device: str, batch_size: int | None, expected: list[int],
) -> None:  # fmt: skip
    used: list[int] = []

    def predict_in_batches(*args: Any, batch_size: int, threads: int) -> Any:
        used.append(batch_size)
        return iter(())

    monkeypatch.setattr(module, "predict_in_batches", predict_in_batches)
    world = World(device=torch.device(device))
    run(new_job(replace(photos, batch_size=batch_size), make_predictor(), world))
    assert used == expected


@pytest.mark.parametrize(
    ("inputs", "expected"), [(("p/a.png",), []), (("p/a.png", "p/c.png"), [2])]
)
def test_several_images_have_a_core_each(
    photos: PredictConfig, monkeypatch: pytest.MonkeyPatch,
    inputs: tuple[str, ...], expected: list[int],
) -> None:  # fmt: skip
    used: list[int] = []
    monkeypatch.setattr(
        module, "one_core_each", lambda threads: used.append(threads) or nullcontext()
    )
    run(new_job(replace(photos, inputs=inputs, workers=2), make_predictor()))
    assert used == expected


def test_a_job_has_the_outputs_that_its_settings_name() -> None:
    predictor = make_predictor()
    config = PredictConfig((), rle="a.csv", polygons="a.json")
    outputs = open_outputs(config, predictor.labels, predictor.format)
    assert [(each.flag, each.path) for each in outputs] == [
        ("--mask", None), ("--rle", Path("a.csv")), ("--polygons", Path("a.json")),
    ]  # fmt: skip
    (alone,) = open_outputs(PredictConfig(()), predictor.labels, predictor.format)
    assert isinstance(alone, MaskFile)


# -- threads and batches --------------------------------------------------------------------


def test_results_come_in_order_from_as_many_threads_as_asked_for() -> None:
    meet = Barrier(3, timeout=20)  # breaks unless three work at the same time

    def work(number: int) -> int:
        meet.wait()
        return number * 2

    assert list(in_threads(work, range(6), 3)) == [0, 2, 4, 6, 8, 10]


def test_five_are_started_in_advance_by_two_threads() -> None:
    taken: list[int] = []

    def items() -> Any:
        for number in range(10):
            taken.append(number)
            yield number

    results = in_threads(lambda number: number, items(), 2)
    assert next(results) == 0 and taken == [0, 1, 2, 3, 4]
    assert next(results) == 1 and taken == [0, 1, 2, 3, 4, 5]
    results.close()


def test_an_error_ends_the_work() -> None:
    started, release = [], Event()

    def work(number: int) -> int:
        started.append(number)
        if number == 0:
            raise RuntimeError("broken")
        release.wait(20)
        return number

    results = in_threads(work, range(100), 2)
    with pytest.raises(RuntimeError, match="broken"):
        release.set()
        list(results)
    assert len(started) <= 5


def test_torch_and_opencv_share_the_cores_for_a_while() -> None:
    torch_before, cv2_before = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(4)
    cv2.setNumThreads(3)
    try:
        for threads, each in ((2, 2), (3, 1), (9, 1)):
            with pytest.raises(KeyError), one_core_each(threads):
                assert torch.get_num_threads() == each
                assert cv2.getNumThreads() == 1  # OpenCV says 1 where it has no threads
                raise KeyError
            assert (torch.get_num_threads(), cv2.getNumThreads()) == (4, 3)
    finally:
        torch.set_num_threads(torch_before)
        cv2.setNumThreads(cv2_before)


def files_for(*paths: Path) -> list[ImageFiles]:
    return [ImageFiles(n, path, Source(path), path, path.name) for n, path in enumerate(paths)]


def test_a_batch_that_fails_is_an_error_of_each_of_its_images(photos: PredictConfig) -> None:
    write_photo(Path("p/f.png"), (40, 30))
    predictor = make_predictor()
    predict = predictor.predict_batch

    def fail(images: Any, sizes: Any) -> Any:
        if sizes[0] == (30, 40):
            raise UserError("out of memory")
        return predict(images, sizes)

    predictor.predict_batch = fail  # type: ignore[method-assign]
    outcomes = run(new_job(replace(photos, batch_size=2), predictor))
    errors = sorted(outcome.error for outcome in outcomes if "memory" in outcome.error)
    assert errors == [f"p/{name}.png: out of memory" for name in "acde"]
    assert sum("p/f.png -> " in outcome.line for outcome in outcomes) == 1 and len(outcomes) == 6


def test_images_of_one_size_form_batches_and_each_gets_its_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = make_predictor(scale=0.5, tile=64)
    sizes = [(40, 60), (60, 40), (40, 60), (40, 60), (200, 150), (60, 40), (41, 61)]
    paths = [write_photo(tmp_path / f"{'x' * n}.png", size) for n, size in enumerate(sizes, 1)]
    paths.insert(2, tmp_path / "missing.png")
    batches: list[int] = []
    scores = predictor.scores
    monkeypatch.setattr(
        predictor, "scores", lambda images: batches.append(len(images)) or scores(images)
    )
    pairs = predict_in_batches(predictor, files_for(*paths), batch_size=2, threads=2)
    found = {files.index: prediction for files, prediction in pairs}
    assert sorted(found) == list(range(8))
    error = found.pop(2)
    assert isinstance(error, UserError) and "missing.png: not found" in str(error)
    # 20x30: images 0, 3, 4, 7; 30x20: images 1, 6; image 5 is 100x75, in 2x2 windows of 64
    assert batches == [2, 2, 2]
    assert found[5].ids.size and batches == [2, 2, 2, 1, 1, 1, 1]
    for index, prediction in found.items():
        expected = predictor(paths[index])
        assert not isinstance(prediction, UserError)
        assert prediction.size == expected.size
        assert (prediction.ids != expected.ids).mean() < 0.01, index


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("batch_size", "is_open"), [(3, True), (33, False)])
def test_files_of_a_large_batch_are_not_kept_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int, is_open: bool
) -> None:
    """A process may have 1,024 files open; the files of a small batch are read again by outputs."""
    predictor = make_predictor()
    paths = [write_photo(tmp_path / f"{n}.png", (16, 16)) for n in range(3)]
    scores, opened = predictor.scores, list[int]()

    def counted(images: Any) -> Any:
        files = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
        opened.append(sum(str(path) in files for path in paths))
        return scores(images)

    monkeypatch.setattr(predictor, "scores", counted)
    pairs = predict_in_batches(predictor, files_for(*paths), batch_size=batch_size, threads=2)
    assert len([*pairs]) == 3 and opened == [3 * is_open]


def test_when_many_sizes_wait_the_largest_group_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = make_predictor()
    decoded: list[int] = []

    def one_by_one(work: Any, items: Any, threads: int) -> Any:
        for files in items:
            decoded.append(files.index)
            yield work(files)

    monkeypatch.setattr(module, "in_threads", one_by_one)
    widths = [16, 18, 20, 18, *range(22, 34)]  # two of width 18
    paths = [write_photo(tmp_path / f"{n}.png", (16, width)) for n, width in enumerate(widths)]
    order = [
        (files.index, len(decoded))
        for files, _ in predict_in_batches(predictor, files_for(*paths), batch_size=3, threads=1)
    ]
    assert order[:3] == [(1, 13), (3, 13), (0, 15)]  # from 13 waiting on
    assert [index for index, _ in order] == [1, 3, 0, 2, *range(4, 16)]
