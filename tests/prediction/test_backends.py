"""Networks that are run: folded or as they were trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.prediction.models import CPU, Backend, lively_network, make_predictor, noise, write_model
from unet_ddp.checkpoints.weights import read_model
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError
from unet_ddp.prediction.backends import (
    KINDS,
    TorchBackend,
    build_model,
    check_described,
    mean_logits,
    open_model,
)
from unet_ddp.prediction.predictor import Predictor

PIXELS = Preprocessing.for_images(3, scale=1.0)


def test_a_backend_is_the_network_after_its_preprocessing() -> None:
    network = lively_network().train()
    pixels = torch.from_numpy(noise(40, 56))[None]
    unfolded = TorchBackend(network, PIXELS, CPU, fold=False)
    assert not network.training
    with torch.no_grad():
        expected = network(PIXELS(pixels))
    assert torch.equal(unfolded(pixels), expected)
    found = TorchBackend(network, PIXELS, CPU)(pixels)
    assert found.shape == (1, 2, 40, 56) and found.is_inference()
    assert not torch.equal(found, expected) and (found - expected).abs().max() < 1e-4


def test_in_bfloat16_a_backend_is_autocast_and_an_image_has_no_neighbours() -> None:
    network, pixels = lively_network(width=4), [noise(40, 56, seed) for seed in range(3)]
    together = torch.from_numpy(np.stack(pixels))
    half = {"dtype": torch.bfloat16}
    unfolded = TorchBackend(network, PIXELS, CPU, fold=False, **half)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = network(PIXELS(together))
    assert expected.dtype == torch.bfloat16 and unfolded(together).dtype == torch.float32
    assert torch.equal(unfolded(together), expected.float())
    folded = TorchBackend(network, PIXELS, CPU, **half)
    assert next(network.parameters()).dtype == torch.float32  # the caller's is as it was
    found = folded(together)
    exact = TorchBackend(network, PIXELS, CPU)(together)
    assert 0 < (found - exact).abs().max() < 0.05 * exact.abs().max()
    assert torch.equal(found, torch.cat([folded(together[k : k + 1]) for k in range(3)]))


@pytest.mark.parametrize(
    ("config", "precision", "expected"),
    [
        ({"precision": "bfloat16"}, "auto", torch.bfloat16),
        ({"precision": "float32"}, "auto", torch.float32),
        ({"precision": "bfloat16"}, "float32", torch.float32),
        ({"precision": "auto"}, "auto", torch.float32),
        (None, "auto", torch.float32),
    ],
)
def test_a_network_predicts_in_the_precision_of_its_run(
    tmp_path: Path, config: dict[str, Any] | None, precision: str, expected: torch.dtype
) -> None:
    """That of a float32 run, or of another program, is float32; and so are all on another CPU."""
    path = tmp_path / "a.pt"
    write_model(path, Labels((0, 1)), config=config)
    backend = open_model(path, CPU, bfloat16=precision == "auto").backend
    assert isinstance(backend, TorchBackend) and backend.dtype == expected
    for is_native in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "unet_ddp.distributed.device.is_faster_in_bfloat16",
                lambda is_native=is_native: is_native,
            )
            backend = (
                Predictor.from_checkpoint(path, device="cpu", precision=precision).models[0].backend
            )
            assert backend.dtype == (expected if is_native else torch.float32)


def test_stride_and_memory_are_the_networks() -> None:
    classic = TorchBackend(lively_network(width=3), PIXELS, CPU)
    assert (classic.stride, classic.bytes_per_pixel) == (16, 4 * 6 * 3)
    encoder = TorchBackend(lively_network("fpn", "resnet18"), PIXELS, CPU)
    assert (encoder.stride, encoder.bytes_per_pixel) == (32, 1600)


def test_a_checkpoint_describes_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_model(path, Labels((0, 255)), threshold=0.3)
    model = open_model(path, CPU)
    assert (model.labels, model.threshold, model.notes) == (Labels((0, 255)), 0.3, [])
    assert model.preprocessing == Preprocessing.for_images(3, scale=0.5)
    pixels = torch.from_numpy(noise(32, 32))[None]
    saved = read_model(path)
    unfolded = open_model(path, CPU, fold=False).backend(pixels)
    assert torch.equal(build_model(saved, path, CPU, fold=False).backend(pixels), unfolded)
    assert torch.equal(build_model(saved, path, CPU).backend(pixels), model.backend(pixels))
    assert not torch.equal(model.backend(pixels), unfolded)
    with pytest.raises(UserError, match=r"--scale 0\.25"):
        open_model(path, CPU, scale=0.25)


@pytest.mark.parametrize("missing", ["architecture", "labels", "preprocessing"])
def test_a_model_that_does_not_describe_itself_is_an_error(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "a.pt"
    write_model(path, Labels((0, 255)))
    saved = read_model(path)
    assert check_described(saved, path) == (saved.architecture, saved.labels, saved.preprocessing)
    with pytest.raises(UserError, match=r"a\.pt: neither .* --load"):
        build_model(replace(saved, **{missing: None}), path, CPU)


# -- test-time augmentation --------------------------------------------------------------------


def left_is_first(pixels: Tensor) -> Tensor:
    """Logits of two classes that depend on the column: no symmetric network."""
    values = pixels[..., 0].float() * torch.arange(pixels.shape[2])
    return torch.stack([values, torch.zeros_like(values)], 1)


def always_second(pixels: Tensor) -> Tensor:
    zeros = torch.zeros(pixels.shape[:3])
    return torch.stack([zeros, zeros + 2], 1)


def test_the_mean_is_of_probabilities() -> None:
    pixels = torch.tensor([[[[1.0], [2.0]]]])  # (1, 1, 2, 1)
    # straight: logits (1*0, 2*1); mirrored: pixels (2, 1), logits (2*0, 1*1), mirrored back (1, 0)
    expected = (np.array([1 / (1 + np.exp(-0.0)), 1 / (1 + np.exp(-2.0))])
                + np.array([1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(-0.0))])) / 2  # fmt: skip
    found = mean_logits([Backend(left_is_first)], pixels, "mirror").softmax(1)
    assert found.shape == (1, 2, 1, 2)
    assert np.allclose(found[0, 0, 0], expected)
    both = mean_logits([Backend(left_is_first), Backend(always_second)], pixels, "mirror").softmax(
        1
    )
    second = 1 / (1 + np.exp(2.0))
    assert np.allclose(both[0, 0, 0], (expected + second) / 2)
    assert torch.equal(mean_logits([Backend(left_is_first)], pixels, "none"), left_is_first(pixels))


SYMMETRIES: dict[str, list[Callable[[Any, int], Any]]] = {
    "none": [lambda a, first: a],
    "mirror": [lambda a, first: np.flip(a, first + 1)],
    "flips": [lambda a, first: np.flip(a, first), lambda a, first: np.flip(a, (first, first + 1))],
    "d4": [lambda a, first, k=k: np.rot90(a, k, (first, first + 1)) for k in (1, 3)]
    + [lambda a, first: np.swapaxes(a, first, first + 1)],
}
"""What each kind has beside those before it, of the rows `first` and the columns after them."""


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_follow_the_transforms_of_their_group_alone(kind: str) -> None:
    predictor, photo = make_predictor(tta=kind), noise(32, 48)
    straight, is_own = predictor(photo).probabilities, True
    assert [*KINDS] == [*SYMMETRIES]
    for name, transforms in SYMMETRIES.items():
        for transform in transforms:
            found = predictor(np.ascontiguousarray(transform(photo, 0))).probabilities
            difference = np.abs(found - transform(straight, 1)).max()
            assert (difference < 1e-5) == is_own, name
        is_own = is_own and name != kind
