"""A run is the same on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests import jobs
from tests.ranks import Ranks
from unet_ddp.data.samplers import TrainingSampler
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.network.sync_batchnorm import SyncBatchNorm2d, synchronise_batchnorm

# Steps on 2 and on 4 ranks: on two cores, four ranks take their time for each of the sums.
NETWORKS = [("unet", None, 20, 8), ("unet", "tu-mobilenetv3_small_050", 8, 3)]


@pytest.mark.parametrize(("model", "encoder", "on_two", "on_four"), NETWORKS)
def test_final_weights_agree_on_1_2_and_4_ranks(
    ranks: Ranks, model: str, encoder: str | None, on_two: int, on_four: int
) -> None:
    """AdamW steps, batch norm, class weights, pixels ignored from none to all of an image."""
    for size, steps in ((2, on_two), (4, on_four)):
        alone = ranks.run(1, jobs.train_steps, model, encoder, 1, steps)[0]
        assert len(alone["losses"]) == steps
        assert alone["losses"][-1] < alone["losses"][0]
        for weights in ranks.run(size, jobs.train_steps, model, encoder, 1, steps):
            worst = max(float(np.abs(weights[name] - alone[name]).max()) for name in alone)
            assert worst < 1e-6, f"{size} ranks"


def test_accumulated_steps_agree_on_1_and_2_ranks(ranks: Ranks) -> None:
    alone = ranks.run(1, jobs.train_steps, "unet", None, 2)[0]
    at_once = ranks.run(1, jobs.train_steps, "unet", None, 1)[0]
    for weights in ranks.run(2, jobs.train_steps, "unet", None, 2):
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


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_rank_has_as_many_batches(size: int) -> None:
    """Or all refuse, with the numbers: a rank with a batch more would wait for ever."""
    for count in range(1, 21):
        for per_step in (1, 2, 3):
            try:
                samplers = [
                    TrainingSampler(count, per_step, rank=rank, size=size, seed=1)
                    for rank in range(size)
                ]
            except UserError as error:
                assert count < per_step * size
                assert f"takes {per_step * size} images" in str(error)
                assert f"there are {count}" in str(error)
                continue
            shares = [[index for _, index in sampler] for sampler in samplers]
            assert {len(share) for share in shares} == {count // (per_step * size) * per_step}
            seen = [index for share in shares for index in share]
            assert len(seen) == len(set(seen))


def test_what_the_main_process_finds_is_known_to_all(ranks: Ranks) -> None:
    assert ranks.run(3, jobs.on_main_results) == [(40, "no good")] * 3


@pytest.mark.parametrize(("kind", "status"), [("mistake", 2), ("fault", 1)])
def test_the_rank_that_fails_speaks_alone(ranks: Ranks, kind: str, status: int) -> None:
    outcomes = ranks.run(3, jobs.said_by_failing, 1, kind, "")
    assert [code for code, _ in outcomes] == [status] * 3
    assert outcomes[0][1] == outcomes[2][1] == ""
    if kind == "mistake":
        assert outcomes[1][1] == "error: bad file\n"
    else:
        assert "rank 1 of 3" in outcomes[1][1]
        assert "RuntimeError: broken code" in outcomes[1][1]


def test_fused_batch_norms_keep_their_activation() -> None:
    """torch's own converter drops the activation inside timm's batch norms."""
    architecture = choose_architecture("unet", "tu-efficientnet_b0", channels=3, num_classes=2)
    torch.manual_seed(0)
    network = build_network(architecture).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        before = network(images)
        converted = synchronise_batchnorm(network, World(size=2)).eval()
        after = converted(images)
    acting = [
        m for m in converted.modules() if isinstance(m, SyncBatchNorm2d) and hasattr(m, "act")
    ]
    assert len(acting) == 48
    assert torch.equal(before, after)


def test_global_batch_norm_is_batch_norm_where_there_is_one_rank() -> None:
    torch.manual_seed(0)
    plain, ours = torch.nn.BatchNorm2d(5).double(), SyncBatchNorm2d(5).double()
    for _ in range(3):
        images = torch.randn(4, 5, 6, 7, dtype=torch.float64)
        a, b = images.clone().requires_grad_(), images.clone().requires_grad_()
        out_a, out_b = plain(a), ours(b)
        torch.testing.assert_close(out_a, out_b)
        weights = torch.randn_like(out_a)
        (out_a * weights).sum().backward()
        (out_b * weights).sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(plain.state_dict(), ours.state_dict())
    torch.testing.assert_close(plain.weight.grad, ours.weight.grad)


@pytest.mark.parametrize("model", ["pspnet", "deeplabv3plus", "pan", "segformer", "linknet"])
def test_other_networks_train_on_two_ranks(ranks: Ranks, model: str) -> None:
    """Some have parameters that no output depends on, which DDP would wait for."""
    for losses in ranks.run(2, jobs.train_some, model, "resnet18", 128):
        assert len(losses) == 3 and all(np.isfinite(losses))


def test_more_ranks_than_gpus_is_known_to_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from unet_ddp.distributed.device import pick_device

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for rank in range(2):
        with pytest.raises(UserError, match="2 processes on a machine with 1 GPU"):
            pick_device("auto", rank, 2)
