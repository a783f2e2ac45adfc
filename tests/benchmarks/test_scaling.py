"""benchmarks.scaling measures what a step really does, and its tables follow from that."""

from __future__ import annotations

import argparse

import pytest
from torch import nn

from benchmarks import scaling
from tests.jobs import sums_of_a_step
from tests.ranks import Ranks


def table(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return the cells of the printed table's rows."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return scaling.new_network(4)


@pytest.fixture(scope="module")
def step(network: nn.Module) -> scaling.Timeline:
    return scaling.measure_step(network)


@pytest.mark.thorough
def test_the_sums_are_those_of_a_step(ranks: Ranks, step: scaling.Timeline) -> None:
    for seen in ranks.run(2, sums_of_a_step, 4):
        assert sorted(seen) == sorted(sum.size for sum in scaling.list_sums(step, is_gpu=False))
        assert len(seen) == 38
    gathers = [sum for sum in scaling.list_sums(step, is_gpu=True) if sum.is_gather]
    assert len(gathers) == 18 and gathers[0].size == 4 * (2 * 4 + 1)


def test_gradients_come_from_the_last_layer_to_the_first(
    network: nn.Module, step: scaling.Timeline
) -> None:
    times = [when for when, _ in step.gradients]
    assert times == sorted(times) and times[0] > 0 and times[-1] <= 1
    sizes = [4 * p.numel() for p in network.parameters()]
    assert sum(size for _, size in step.gradients) == sum(sizes)
    assert step.gradients[-1][1] == sizes[0] and step.gradients[0][1] in sizes[-2:]
    there, back, _ = zip(*step.norms, strict=True)
    assert list(there) == sorted(there) and list(back) == sorted(back, reverse=True)
    assert there[-1] < step.loss < back[-1]


@pytest.fixture
def known(network: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """124 MB of gradients in the second half of the step, instead of three seconds to measure them."""
    gradients = [(0.5 + part / 120, 2_070_000) for part in range(1, 61)]
    norms = [scaling.Norm(k / 40, 1 - k / 40, 512) for k in range(1, 19)]
    step = scaling.Timeline(gradients, norms, 0.5)
    monkeypatch.setattr(scaling, "measure_step", lambda network: step)
    monkeypatch.setattr(scaling, "new_network", lambda width: network)


@pytest.mark.usefixtures("known")
def test_a_group_of_their_own_saves_what_sums_would_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scaling.main([])
    assert [row[0] for row in table(capsys)] == ["1", "8", "64", "256"]
    scaling.main(["queue"])
    rows = table(capsys)
    assert [row[0] for row in rows] == ["8", *3 * ["64"], *3 * ["512"]]
    assert [row[1].split(",")[0] for row in rows] == ["NVLink", *2 * ["InfiniBand", "RoCE", "TCP"]]
    for row in rows:
        shared, own, half = (float(share.rstrip("%")) for share in row[5:])
        assert float(row[4]) >= 0 and shared <= own <= half <= 100
    roce = rows[2]
    assert float(roce[6].rstrip("%")) - float(roce[5].rstrip("%")) > 5


@pytest.mark.usefixtures("known")
def test_the_vendors_figures_are_met_where_a_step_is_long(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scaling.main(["published"])
    found = {(row[0], row[1]): (row[2], float(row[4].rstrip("%"))) for row in table(capsys)}
    for case, speed, within in (
        (("nnU-Net, 2-D", "128"), "7.95", 3),
        (("classic U-Net", "8"), "7.10", 25),
    ):
        assert found[case][0] == speed
        assert 0 < found[case][1] < within  # the model has no slow rank: it is never below


@pytest.mark.thorough
@pytest.mark.processes
def test_two_ranks_here_are_predicted_and_measured(capsys: pytest.CaptureFixture[str]) -> None:
    scaling.print_here(argparse.Namespace(width=2, size=(48, 32), images=4, steps=3, turns=1))
    ((_, alone, sums, gradients, predicted, measured, ratio),) = table(capsys)
    parts = float(alone) + float(sums) + float(gradients)
    assert float(predicted) == pytest.approx(parts, abs=0.2)
    assert float(ratio) == pytest.approx(float(predicted) / float(measured), rel=0.1)
