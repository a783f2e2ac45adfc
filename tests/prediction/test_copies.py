"""Copies of a predictor, in this process and in others, and of what it and the package's functions return."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.prediction.models import (
    CPU,
    Backend,
    lively_network,
    load,
    make_predictor,
    noise,
    write_model,
)
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.prediction.backends import LoadedModel
from unet_ddp.prediction.predictor import Predictor

PHOTO = noise(41, 67)


class Masks(Dataset[Any]):
    """A data set whose items are predicted by the process that loads them."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    def __getitem__(self, place: int) -> Any:
        return torch.from_numpy(self.predictor(noise(41, 67, place)).mask.copy())

    def __len__(self) -> int:
        return 2


def copies(value: Any) -> list[Any]:
    return [pickle.loads(pickle.dumps(value)), copy.deepcopy(value)]


@pytest.mark.parametrize("tile", [None, 32])
@pytest.mark.parametrize("labels", [Labels((0, 1)), Labels((0, 7, 9)), ObjectLabels.of(("cell",))])
def test_copies_of_a_predictor_and_a_prediction_have_its_masks(
    tmp_path: Path, labels: Labels, tile: int | None
) -> None:
    """Issue: a lambda could not be pickled."""
    for seed in (3, 4):
        write_model(tmp_path / f"{seed}.pt", labels, seed=seed)
    paths = tmp_path / "3.pt", tmp_path / "4.pt"
    predictor = Predictor.from_checkpoint(*paths, device="cpu", tile=tile)
    expected = predictor(PHOTO)
    for found in (*(each(PHOTO) for each in copies(predictor)), *copies(expected)):
        assert np.array_equal(found.mask, expected.mask) and found.labels == labels
        assert np.array_equal(found.probabilities, expected.probabilities)


def test_copies_of_a_network_for_any_size_have_its_masks() -> None:
    """Issue: its class, of padding and the network's own, is in no module."""
    model = load(lively_network("fpn", "resnet18"), Labels((0, 1)))
    predictor = Predictor([model], device=CPU)
    expected = predictor(PHOTO)
    for found in copies(predictor):
        assert np.array_equal(found(PHOTO).probabilities, expected.probabilities)


def test_a_copy_for_a_gpu_has_another_lock() -> None:
    facts = Labels((0, 1)), Preprocessing.for_images(3, scale=1.0), None, []
    model = LoadedModel(Backend(abs), *facts)
    predictor = Predictor([model], device=torch.device("cuda"))
    for found in copies(predictor):
        assert found.device == predictor.device


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_loader_predict_the_same_masks(method: str) -> None:
    predictor = make_predictor()
    loader = DataLoader(
        Masks(predictor), batch_size=None, num_workers=1, multiprocessing_context=method
    )
    for place, found in enumerate(loader):
        assert np.array_equal(found, predictor(noise(41, 67, place)).mask)
