"""Threads: order, how far ahead, and batches of one size."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Event
from typing import Any

import cv2
import pytest
import torch

from tests.prediction.models import make_predictor, write_photo
from unet_ddp.errors import UserError
from unet_ddp.prediction import parallel as module
from unet_ddp.prediction.outputs.names import ImageFiles
from unet_ddp.prediction.parallel import attempt, in_threads, one_core_each, predict_in_batches


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


def test_an_unreadable_image_is_a_result() -> None:
    def refuse(image: str) -> Any:
        raise UserError(f"{image}: bad")

    found = attempt(refuse, "a")
    assert isinstance(found, UserError) and str(found) == "a: bad"
    with pytest.raises(ZeroDivisionError):
        attempt(lambda image: 1 // image, 0)  # type: ignore[arg-type, return-value]


def files_for(*paths: Path) -> list[ImageFiles]:
    return [ImageFiles(n, path, path, None, []) for n, path in enumerate(paths)]


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
    assert sorted(batches) == [1, 1, 1, 1, 2, 2, 2]
    for index, prediction in found.items():
        expected = predictor(paths[index])
        assert not isinstance(prediction, UserError)
        assert prediction.size == expected.size
        assert (prediction.ids != expected.ids).mean() < 0.01, index


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
