"""A step, a validation and the prediction of a batch never wait for the device.

Fake tensors have sizes and types and no values: whatever would make the host wait for a GPU's
values (`item`, `bool`, indexing by a mask, `nonzero`) raises. Copies between devices are not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch.amp.grad_scaler import GradScaler

from tests.prediction.models import Backend
from tests.tiny import CPU, make_loss, make_state
from tests.training.test_losses import CASES
from unet_ddp.data.dataset import Sample
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.heads import SOFTMAX
from unet_ddp.network.precision import Precision
from unet_ddp.network.unet import UNet
from unet_ddp.prediction.backends import mean_logits
from unet_ddp.training.losses import Losses, SegmentationLoss
from unet_ddp.training.state import TrainState
from unet_ddp.training.step import train_step
from unet_ddp.training.tensors import WeightAverage
from unet_ddp.training.validation import count_pixels

WAITS = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
# Its constants are kept as tensors, which are fake ones here: no other test has this instance's values.
PIXELS = Preprocessing(3, (0.41, 0.51, 0.61), (0.21, 0.31, 0.41), 1.0)
MODE = fake_tensor.FakeTensorMode()
PAIRS = torch.arange(2)


@pytest.fixture(autouse=True)
def _fake() -> Iterator[None]:
    with MODE:
        yield


def fake_batch() -> Sample:
    pixels = torch.zeros(2, 40, 48, 3, dtype=torch.uint8)
    return Sample(pixels, pixels[..., 0], PAIRS)


def fake_state(dtype: str, *, classes: int = 2, checkpointing: bool = False) -> TrainState:
    """A run with everything that a step can have: average, scaler, class weights."""

    class Network(UNet):
        def __deepcopy__(self, memo: object) -> UNet:  # fake tensors are not copied
            return UNet(3, classes, width=2, checkpointing=checkpointing)

    network = Network(3, classes, width=2, checkpointing=checkpointing)
    average = WeightAverage(network, 0.9)
    state = make_state(network, average=average, preprocess=PIXELS)
    state.loss = make_loss(class_weights=(1.0,) * classes)
    state.precision = Precision(CPU, "bfloat16" if dtype == "bfloat16" else "auto")
    if dtype == "float16":
        state.precision.scaler = GradScaler("cpu", init_scale=1024.0)
    return state


@pytest.mark.parametrize(
    ("dtype", "checkpointing", "classes"),
    [("float32", False, 2), ("bfloat16", True, 5), ("float16", False, 2)],
)
def test_a_step_and_a_validation_never_wait(dtype: str, checkpointing: bool, classes: int) -> None:
    state = fake_state(dtype, classes=classes, checkpointing=checkpointing)
    for _ in range(2):
        report = train_step(state, iter([fake_batch()] * 2), accumulate=2, clip=1.0)
    assert report.pairs == [0, 1, 0, 1]
    counts = count_pixels(state, [fake_batch()] * 2, num_classes=classes)
    for computed in (report.losses, state.sums, counts.confusion):
        assert isinstance(computed, fake_tensor.FakeTensor)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_no_loss_waits_for_the_device(options: dict[str, Any]) -> None:
    logits = torch.randn(2, 3, 40, 48, requires_grad=True)
    loss = make_loss(**options, class_weights=(1.0, 2.0, 3.0))(logits, fake_batch().mask)
    loss.total.backward()
    assert isinstance(logits.grad, fake_tensor.FakeTensor)


@pytest.mark.parametrize(
    "wait",
    [
        lambda logits, masks: logits.sum().item(),
        lambda logits, masks: bool(logits.sum() > 0),
        lambda logits, masks: masks[masks > 0].sum(),
    ],
)
def test_a_step_that_waited_would_be_noticed(wait: Callable[[Tensor, Tensor], Any]) -> None:
    def waiting(logits: Tensor, masks: Tensor) -> Losses:
        wait(logits, masks)
        return SegmentationLoss()(logits, masks)

    state = fake_state("float32")
    state.loss = waiting  # type: ignore[assignment]
    with pytest.raises(WAITS):
        train_step(state, iter([fake_batch()]))


@pytest.mark.parametrize(("tta", "classes"), [("none", 2), ("d4", 5)])
def test_the_scores_of_a_batch_never_wait_for_the_device(tta: str, classes: int) -> None:
    networks = [UNet(3, classes, width=2).eval() for _ in range(2)]
    with torch.inference_mode():
        backends = [Backend(lambda x, n=n: n(PIXELS(x))) for n in networks]
        scores = SOFTMAX.reduce(mean_logits(backends, fake_batch().image, tta))
    assert isinstance(scores, fake_tensor.FakeTensor)
