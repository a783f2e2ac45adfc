"""Threads: order, how far ahead, and batches of one size."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Event
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from tests.prediction.models import make_predictor, write_photo
from unet_ddp.errors import UserError
from unet_ddp.prediction.outputs.names import ImageFiles
from unet_ddp.prediction.parallel import attempt, in_threads, one_core_each, predict_in_batches


def test_results_come_in_order_from_as_many_threads_as_asked_for() -> None:
    meet = Barrier(3, timeout=20)  # breaks unless three work at the same time

    def work(number: int) -> int:
        meet.wait()
        return number * 2

    assert list(in_threads(work, range(6), 3, ahead=3)) == [0, 2, 4, 6, 8, 10]


def test_no_more_is_started_than_may_wait() -> None:
    taken: list[int] = []

    def items() -> Any:
        for number in range(10):
            taken.append(number)
            yield number

    results = in_threads(lambda number: number, items(), 2, ahead=4)
    assert next(results) == 0 and taken == [0, 1, 2, 3]
    assert next(results) == 1 and taken == [0, 1, 2, 3, 4]
    results.close()


def test_an_error_ends_the_work() -> None:
    started, release = [], Event()

    def work(number: int) -> int:
        started.append(number)
        if number == 0:
            raise RuntimeError("broken")
        release.wait(20)
        return number

    results = in_threads(work, range(100), 2, ahead=8)
    with pytest.raises(RuntimeError, match="broken"):
        release.set()
        list(results)
    assert len(started) <= 8


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


def test_images_of_many_sizes_do_not_pile_up(tmp_path: Path) -> None:
    """The largest of the waiting groups goes first when too many wait."""
    predictor = make_predictor()
    sizes = [(16, 20), (16, 20), *((16, 24 + n) for n in range(7))]
    paths = [write_photo(tmp_path / f"{n}.png", size) for n, size in enumerate(sizes)]
    order = [
        files.index
        for files, _ in predict_in_batches(predictor, files_for(*paths), batch_size=2, threads=1)
    ]
    assert order[:2] == [0, 1] and sorted(order) == list(range(9))
    order = [
        files.index
        for files, _ in predict_in_batches(predictor, files_for(*paths), batch_size=3, threads=1)
    ]
    assert order == list(range(9))
    many = files_for(*paths[:2], *(paths[n] for n in (2, 3, 4, 5, 6, 7, 8)))
    seen: list[int] = []

    def items() -> Any:
        for files in many:
            seen.append(files.index)
            yield files

    pairs = predict_in_batches(predictor, items(), batch_size=1, threads=1)
    assert next(pairs)[0].index == 0 and max(seen) <= 4
    assert np.all([prediction.ids.shape[0] == 16 for _, prediction in pairs])  # type: ignore[union-attr]
