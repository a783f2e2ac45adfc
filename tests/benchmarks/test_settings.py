"""The schedule, the flip and the networks that benchmarks.settings compares."""

import time

import numpy as np
import pytest
import torch

from benchmarks.kinds import KINDS, LeveledUNet, alternate_flip
from benchmarks.settings import TimedSchedule, report
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.formats.header import ImageFormat
from unet_ddp.network.unet import UNet


def count(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_a_schedule_ends_when_the_time_is_spent():
    spent = TimedSchedule(1.0, 1000, seconds=1.0, began=time.process_time() - 1)
    half = TimedSchedule(1.0, 1000, warmup=0.0, seconds=1000.0, began=time.process_time() - 500)

    assert spent.at(3) == pytest.approx(0.01)
    assert half.at(3) == pytest.approx(0.505, abs=0.005)


def test_an_image_is_mirrored_in_every_second_epoch():
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    augmentation = Augmentation(ImageFormat(3, "uint8"), "street", None, seed=0)
    for transform in augmentation.compose.transforms[1:]:
        transform.p = 0.0
    change = alternate_flip(augmentation)

    changed = [change(image, image[..., 0], epoch=e, index=7, drawn=None)[1] for e in range(4)]

    mirrored = [np.array_equal(mask, image[:, ::-1, 0]) for mask in changed]
    assert mirrored == [True, False, True, False]
    assert augmentation.compose.transforms[0].p == 0.5  # the usual one is as before


@pytest.mark.parametrize("name", list(KINDS))
def test_a_network_returns_logits_of_odd_sizes(name):
    network = KINDS[name].network(3, 5).eval()

    assert network(torch.zeros(1, 3, 45, 61)).shape == (1, 5, 45, 61)


def test_the_networks_are_those_of_the_papers():
    assert count(LeveledUNet(3, 2, width=8, depth=4)) == count(UNet(3, 2, width=8))
    assert count(KINDS["DABNet"].network(3, 19)) == pytest.approx(0.76e6, rel=0.02)


def test_differences_are_of_the_same_seed(capsys):
    scores = {("a", 0): 0.5, ("a", 1): 0.9, ("b", 0): 0.6, ("b", 1): 0.8, ("b", 2): 0.1}
    runs = {("camvid", v, s): {"score": x, "steps": 10} for (v, s), x in scores.items()}

    report(runs, ["a", "b"])

    row = capsys.readouterr().out.splitlines()[-1].split("|")
    assert row[4].strip() == "0.500 ± 0.361"
    assert row[5].strip() == "0.000 ± 0.141; 1 of 2"
