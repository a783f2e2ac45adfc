"""A run is the same on any number of ranks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from benchmarks.objects import draw_ellipses
from tests import jobs
from tests.ranks import Ranks
from tests.training.test_losses import CASES
from unet_ddp.network.architecture import in_encoder

ENCODER = "tu-mobilenetv3_small_050"


@pytest.mark.parametrize(
    ("encoder", "size", "steps"),
    [
        (None, 2, 8),
        (ENCODER, 2, 3),
        pytest.param(None, 2, 20, marks=[pytest.mark.thorough, pytest.mark.release]),
        pytest.param(None, 4, 8, marks=pytest.mark.thorough),
        pytest.param(ENCODER, 4, 3, marks=[pytest.mark.thorough, pytest.mark.release]),
    ],
)
def test_final_weights_agree_with_those_of_one_rank(
    ranks: Ranks, encoder: str | None, size: int, steps: int
) -> None:
    """AdamW steps, batch norm, class weights, pixels ignored from none to all of an image."""
    alone = ranks.run(1, jobs.weights_after, "unet", encoder, 1, steps)[0]
    assert len(alone["losses"]) == steps
    assert alone["losses"][-1] < alone["losses"][0]
    for weights in ranks.run(size, jobs.weights_after, "unet", encoder, 1, steps):
        assert max(float(np.abs(weights[name] - alone[name]).max()) for name in alone) < 1e-6


@pytest.mark.parametrize(
    ("encoder", "size", "how"),
    [
        (None, 2, {"frozen": True}),
        pytest.param(None, 2, {"encoder_rate": 0.1}, marks=pytest.mark.thorough),
        pytest.param(ENCODER, 2, {"frozen": True}, marks=pytest.mark.thorough),
        pytest.param(None, 4, {"frozen": True}, marks=[pytest.mark.thorough, pytest.mark.release]),
        pytest.param(
            None, 4, {"encoder_rate": 0.1}, marks=[pytest.mark.thorough, pytest.mark.release]
        ),
        pytest.param(None, 2, {"frozen": True, "checkpointing": True}, marks=pytest.mark.thorough),
    ],
)
def test_fine_tuning_agrees_too(
    ranks: Ranks, encoder: str | None, size: int, how: dict[str, Any]
) -> None:
    """A frozen encoder has no gradients that DDP would wait for, and its batch norm sums nothing."""
    alone = ranks.run(1, partial(jobs.weights_after, **how), "unet", encoder, 1, 4)[0]
    start = ranks.run(1, partial(jobs.weights_after, **how), "unet", encoder, 1, 0)[0]
    for weights in ranks.run(size, partial(jobs.weights_after, **how), "unet", encoder, 1, 4):
        assert max(float(np.abs(weights[name] - alone[name]).max()) for name in alone) < 1e-6
        changed = {name for name in start if not np.array_equal(weights[name], start[name])}
        is_trained = any(in_encoder(name) for name in changed)
        assert is_trained is ("encoder_rate" in how) and len(changed) > 20


def test_local_batch_norm_has_one_network_on_all_ranks_after_each_step(ranks: Ranks) -> None:
    """Two steps: the averages of the first batches weigh alike, those of all ranks too."""
    job = partial(jobs.weights_after, local_norms=True)
    one, two = ranks.run(2, job, "unet", None, 1, 2)
    (together,) = ranks.run(1, job, "unet", None, 1, 2)
    for name, value in one.items():
        np.testing.assert_array_equal(two[name], value, err_msg=name)
    (first,) = (name for name in one if name == "inc.double_conv.1.running_mean")
    # The first layer's mean is linear in its images; its statistics are not those of all images.
    np.testing.assert_allclose(one[first], together[first], rtol=0.05)
    assert np.abs(one["losses"] - together["losses"]).max() > 1e-6


def test_every_loss_and_its_gradient_agree_on_1_2_and_4_ranks(ranks: Ranks) -> None:
    """Ignored rows, a rank without a valid pixel, images whose losses differ by orders of size."""
    alone = ranks.run(1, jobs.loss_gradients, CASES)[0]
    for size in (2, 4):
        for found in ranks.run(size, jobs.loss_gradients, CASES):
            for case, mine, theirs in zip(CASES, found, alone, strict=True):
                for one, other in zip(mine, theirs, strict=True):
                    assert np.abs(other).max() > 1e-3, case
                    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6, err_msg=str(case))


@pytest.mark.parametrize("shares", [[7], [5, 2], [1, 3, 1, 2]], ids=str)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("layout", "affine"), [("contiguous_format", True), ("channels_last", False)]
)
def test_a_layer_normalises_as_torch_does_for_all_images(
    ranks: Ranks, device: str, shares: list[int], layout: str, affine: bool
) -> None:
    """Ranks with unequal batches; a GPU's kernels are stood in for by their formulas."""
    norm = nn.BatchNorm2d(5, eps=0.01, momentum=0.3, affine=affine).double()
    images, factors = jobs.draw_images(norm)
    images.requires_grad_()
    running = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    for _ in range(3):
        out = F.batch_norm(images, *running, norm.weight, norm.bias, True, 0.3, 0.01)
    (out * factors).sum().backward()
    found = ranks.run(len(shares), jobs.batch_norm_of_shares, device, shares, layout, affine)
    kind = {"cpu": "SyncBatchNorm2d", "cuda": "GpuSyncBatchNorm2d"}[device]
    assert {rank["kind"] for rank in found} == {kind if len(shares) > 1 else "BatchNorm2d"}
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)
    close(np.concatenate([rank["out"] for rank in found]), out.detach())
    close(np.concatenate([rank["grad"] for rank in found]), images.grad)
    for name, parameter in norm.named_parameters():
        assert parameter.grad is not None
        close(sum(rank[f"grad of {name}"] for rank in found), parameter.grad / len(shares))
    for rank in found:
        close(rank["running_mean"], running[0])
        close(rank["running_var"], running[1])
        assert rank["num_batches_tracked"] == 3


def test_sums_of_batch_norm_have_a_group_of_their_own(ranks: Ranks) -> None:
    """On one communicator of NCCL each of them would wait for the gradients under way."""
    together = ranks.run(2, jobs.groups_of_sums, False)
    for (seen, losses), (seen_apart, losses_apart) in zip(
        together, ranks.run(2, jobs.groups_of_sums, True), strict=True
    ):
        assert set(seen) == {"all"} and losses == losses_apart
        # In each step 18 norms there, the loss there and back, 18 norms back.
        assert seen_apart == 2 * [*18 * ["own"], "all", "all", *18 * ["own"]]


def test_accumulated_steps_agree_on_1_and_2_ranks(ranks: Ranks) -> None:
    alone = ranks.run(1, jobs.weights_after, "unet", None, 2, 6)[0]
    at_once = ranks.run(1, jobs.weights_after, "unet", None, 1, 6)[0]
    for weights in ranks.run(2, jobs.weights_after, "unet", None, 2, 6):
        assert max(float(np.abs(weights[name] - alone[name]).max()) for name in alone) < 1e-6
    assert np.abs(at_once["losses"] - alone["losses"]).max() > 1e-6  # it is another computation


def test_scores_are_identical_on_1_to_4_ranks(ranks: Ranks) -> None:
    """1 to 9 images, fewer than ranks or divided by none of them: none twice, none left out."""
    sizes = list(range(1, 10))
    alone = ranks.run(1, jobs.count_shards, sizes)[0]
    for count, counts in zip(sizes, alone, strict=True):
        valid = sum(int((jobs.fixed_sample(i).mask != 255).sum()) for i in range(count))
        assert [part.sum() for part in counts] == [valid, valid]
    for size in (2, 3, 4):
        for found in ranks.run(size, jobs.count_shards, sizes):
            for mine, theirs in zip(found, alone, strict=True):
                assert all((a == b).all() for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize(
    "names", [pytest.param(("object",), marks=pytest.mark.thorough), ("bright", "grey")]
)
def test_objects_and_their_separation_are_identical_on_1_to_3_ranks(
    ranks: Ranks, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Five images: divided by none of the ranks but one."""
    draw_ellipses(tmp_path, count=5, side=48)
    for path in [*(tmp_path / "masks").iterdir()] if len(names) > 1 else ():
        image, numbers = (
            np.asarray(Image.open(tmp_path / n / path.name)) for n in ("imgs", "masks")
        )
        shades = np.bincount(numbers.ravel(), image.ravel()) / np.bincount(numbers.ravel()).clip(1)
        classes = np.where(shades > 175, 1, 2)[numbers] * (numbers > 0)
        tifffile.imwrite(path.with_suffix(".tif"), (classes * 1_000_000 + numbers).astype(np.int32))
        path.unlink()
    alone = ranks.run(1, jobs.object_scores, str(tmp_path), *names)[0]
    assert alone["true_objects"] > 20 and alone["merged_objects"] > 0 and 0 < alone["mean_ap"] < 0.9
    assert list(alone["by_class"] or ["object"]) == list(names)
    for size in (2, 3):
        assert ranks.run(size, jobs.object_scores, str(tmp_path), *names) == [alone] * size


@pytest.mark.thorough
def test_what_the_main_process_does_may_take_longer_than_ranks_wait(ranks: Ranks) -> None:
    """As uploads do, which rank 0 waits for."""
    assert ranks.run(2, jobs.wait_for_main, 2.0) == [40, 40]


@pytest.mark.parametrize(("kind", "status"), [("mistake", 2), ("fault", 1)])
def test_the_rank_that_fails_speaks_alone(ranks: Ranks, kind: str, status: int) -> None:
    outcomes = ranks.run(3, jobs.said_by_failing, 1, kind)
    assert [code for code, _ in outcomes] == [status] * 3
    assert outcomes[0][1] == outcomes[2][1] == ""
    if kind == "mistake":
        assert outcomes[1][1] == "error: bad file\n"
    else:
        assert "rank 1 of 3" in outcomes[1][1]
        assert "RuntimeError: broken code" in outcomes[1][1]


@pytest.mark.parametrize(
    "model",
    [
        "pspnet",
        *(
            pytest.param(model, marks=[pytest.mark.thorough] + [pytest.mark.release] * (k > 0))
            for k, model in enumerate(("linknet", "deeplabv3plus", "pan", "segformer"))
        ),
    ],
)
def test_other_networks_train_on_two_ranks(ranks: Ranks, model: str) -> None:
    """PSPNet has parameters that no output depends on, for which DDP would wait."""
    for losses in ranks.run(2, jobs.train_some, model, "resnet18", 128):
        assert len(losses) == 3 and all(np.isfinite(losses))
