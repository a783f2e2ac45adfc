"""A loss of the user's own: named by its path, or by the entry point of a package."""

from __future__ import annotations

import csv
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests import jobs
from tests.conftest import data_flags, install_package, make_set
from tests.ranks import Ranks, call_train
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.config import OptimizationConfig
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError
from unet_ddp.extras.hosts.compare import check_data
from unet_ddp.extras.tune import command as tune
from unet_ddp.training.losses import Batch, SegmentationLoss
from unet_ddp.training.own_loss import try_loss

SOURCE = '''
class SquaredDice:
    """1 - Dice with squares in the denominator, of all classes together."""

    column = "squared_dice"

    def __init__(self, options):
        pass

    def sums(self, batch):
        overlap = (batch.probabilities * batch.truth).sum().view(1)
        return {"overlap": overlap, "squares": (batch.probabilities**2).sum().view(1)}

    def value(self, sums, weights):
        whole = sums["squares"] + sums["occurring"].sum()
        return 1 - 2 * sums["overlap"].squeeze() / whole.squeeze()
'''
FLAGS = [
    "--width", "2", "--epochs", "1", "--validation", "20", "--workers", "0", "--precision=auto",
]  # fmt: skip


@pytest.fixture
def own_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, and a package that is installed there with an entry point."""
    (tmp_path / "my_losses.py").write_text(SOURCE)
    install_package(tmp_path, "[unet_ddp.losses]\nsquared = my_losses:SquaredDice\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_losses", raising=False)
    return tmp_path


def losses(name: str) -> list[float]:
    torch.manual_seed(3)
    logits, masks = torch.randn(2, 3, 8, 8), torch.randint(0, 3, (2, 8, 8))
    return [float(part) for part in SegmentationLoss(OptimizationConfig(loss=name))(logits, masks)]


def test_a_path_and_an_entry_point_name_the_same_loss(own_loss: Path) -> None:
    total, region, pixel = losses("my_losses:SquaredDice+ce")
    assert losses("squared+ce") == [total, region, pixel]
    assert 0 < region < 1 and pixel == losses("ce")[2] and total == pytest.approx(region + pixel)
    assert losses("squared") == [region, region, 0]
    OptimizationConfig(loss="squared").check()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_losses:Other", "AttributeError: module 'my_losses' has no attribute 'Other'"),
        ("not_there:Loss", "ModuleNotFoundError: No module named 'not_there'"),
    ],
)
def test_what_is_not_there_is_a_line(own_loss: Path, name: str, said: str) -> None:
    with pytest.raises(UserError, match=f"{name}: can't be imported .{said}"):
        SegmentationLoss(OptimizationConfig(loss=name))


def test_ranks_with_different_sources_are_refused() -> None:
    def gather(own: object) -> list[Any]:
        return [own, ("b", {"the source of my:Loss": "0123"})]

    world: Any = SimpleNamespace(size=2, gather=gather)
    said = r"the source of my:Loss is 0123 on b, but [0-9a-f]{8} on .* same file"
    with pytest.raises(UserError, match=said):
        check_data(Split(Pairs(), Pairs(), "how"), {"my:Loss": "its text"}, world)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "column, sums, value = 'loss', print, print",
            "its column is 'loss'; it must be a name that metrics.csv lacks",
        ),
        ("column, sums, value = 'dice_mine', print, print", "its column is 'dice_mine'"),
        ("column, sums, value = 3, print, print", "its column is 3"),
        ("pass", "AttributeError: 'Faulty' object has no attribute 'column'"),
        ("def __init__(self): pass", "TypeError: .*takes 1 positional argument but 2 were given"),
        ("column = 'own'", "AttributeError: 'Faulty' object has no attribute 'sums'"),
        ("column, sums, value = 'own', print, len", "TypeError: too many positional arguments"),
    ],
)
def test_what_is_no_term_is_a_line(own_loss: Path, text: str, said: str) -> None:
    more = "" if "def" in text else "\n    def __init__(self, options): pass"
    (own_loss / "my_losses.py").write_text(f"class Faulty:\n    {text}{more}\n")
    with pytest.raises(UserError, match=f"--loss my_losses:Faulty: {said}"):
        SegmentationLoss(OptimizationConfig(loss="my_losses:Faulty"))


PLAIN = """
import torch
from torch.nn import functional as F


def smooth(logits, masks):
    return F.cross_entropy(logits, masks, ignore_index=255, label_smoothing=0.1)


def decorated(function):
    def call(*args, **kwargs):  # without functools.wraps
        return function(*args, **kwargs)

    return call


timed = decorated(smooth)


class Weighed(torch.nn.CrossEntropyLoss):
    def __init__(self):
        super().__init__(torch.tensor([1.0, 2.0, 3.0]), ignore_index=255)


weighed = Weighed()


def images(logits, masks):
    return F.cross_entropy(logits, masks, reduction="none").mean((1, 2))


def number(logits, masks):
    return 3.0


def constant(logits, masks):
    return torch.zeros(())


def three(logits, masks, weights):
    return logits.mean()


class Three(torch.nn.Module):
    forward = staticmethod(three)


class Sized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("importance", torch.ones(24, 40))

    def forward(self, logits, masks):
        return (F.cross_entropy(logits, masks, ignore_index=255, reduction="none") * self.importance).mean()


def large(logits, masks):
    assert min(masks.shape[1:]) > 70
    return F.cross_entropy(logits, masks, ignore_index=255)


class Late(torch.nn.Module):
    def forward(self, logits, masks):
        self.register_buffer("late", torch.ones(()))
        return logits.mean()
"""


@pytest.mark.parametrize("name", ["smooth", "Weighed", "weighed", "timed"])
def test_a_plain_function_or_module_is_a_loss(own_loss: Path, name: str) -> None:
    (own_loss / "my_losses.py").write_text(PLAIN)
    torch.manual_seed(3)
    logits, masks = torch.randn(2, 3, 8, 8), torch.randint(0, 3, (2, 8, 8))
    if name in ("smooth", "timed"):
        expected = F.cross_entropy(logits, masks, label_smoothing=0.1)
    else:
        expected = F.cross_entropy(logits, masks, torch.tensor([1.0, 2.0, 3.0]))
    total, region, pixel = losses(f"my_losses:{name}+ce")
    assert region == pytest.approx(float(expected)) and total == pytest.approx(region + pixel)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("images", r"--loss my_losses:images: returns \(2,\); expected one number"),
        ("number", "--loss my_losses:number: returns float; expected one number"),
        ("constant", "--loss my_losses:constant: has no gradient"),
        ("three", "--loss my_losses:three: TypeError: missing a required argument: 'weights'"),
        ("Three", "--loss my_losses:Three: TypeError: missing a required argument: 'weights'"),
        ("Late", "--loss my_losses:Late: made again, it does not take its own state dict"),
    ],
)
def test_what_is_no_loss_is_a_line_before_the_run_has_its_folder(
    own_loss: Path, name: str, said: str
) -> None:
    make_set(own_loss, 4)
    (own_loss / "my_losses.py").write_text(PLAIN)
    argv = [*data_flags(own_loss), *FLAGS, "--loss", f"my_losses:{name}"]
    status, _, err = call_train(argv, str(own_loss))
    assert status == 2 and re.search(f"error: {said}", err), err
    assert not (own_loss / "checkpoints" / "last.pt").exists()


@pytest.mark.parametrize(
    ("name", "size", "more"),
    [
        ("Sized", (24, 40), []),
        ("Sized", (30, 60), ["--crop-size", "24", "40"]),
        ("large", (96, 80), []),
    ],
)
def test_a_loss_is_tried_with_the_size_of_the_training_images(
    own_loss: Path, name: str, size: tuple[int, int], more: list[str]
) -> None:
    make_set(own_loss, 6, size=size)
    (own_loss / "my_losses.py").write_text(PLAIN)
    argv = [*data_flags(own_loss), *FLAGS, "--loss", f"my_losses:{name}", "--stop-after", "1"]
    status, _, err = call_train([*argv, *more], str(own_loss))
    assert status == 0, err


MEANS = """
class Own:
    column = "own"

    def __init__(self, options):
        pass

    def sums(self, batch):
        loss = -(batch.truth * batch.log_probabilities).sum(1)
        return {"loss": loss.WAY().view(1), "pixels": loss.new_tensor([loss.numel()])}

    def value(self, sums, weights):
        return (sums["loss"] / sums["pixels"]).squeeze()
"""


@pytest.mark.parametrize(("way", "is_sum"), [("sum", True), ("mean", False), ("amax", False)])
def test_sums_that_ranks_can_not_add_up_are_refused(own_loss: Path, way: str, is_sum: bool) -> None:
    (own_loss / "my_losses.py").write_text(MEANS.replace("WAY", way))
    for name in ("my_losses:Own", "my_losses:Own+ce", "dice+my_losses:Own"):
        loss = SegmentationLoss(OptimizationConfig(loss=name))
        if is_sum:
            try_loss(loss, 3, torch.device("cpu"))
            continue
        with pytest.raises(
            UserError, match=r"--loss .*: loss of two images is .* as the sum of each: return sums"
        ):
            try_loss(loss, 3, torch.device("cpu"))


def tried(logits: Tensor, masks: Tensor) -> Tensor:
    """Say what masks it has seen; images must be as large as the environment says."""
    side, least = masks.shape[-1], int(os.environ["LEAST_SIDE"])
    changes = int((masks.diff() != 0).sum() + (masks.diff(dim=-2) != 0).sum())
    print(side, len(masks.unique()), changes / side)
    if side < least:
        raise ValueError(f"needs {least} pixels")
    return F.cross_entropy(logits, masks)


def mean_of_single_pixels(logits: Tensor, masks: Tensor) -> Tensor:
    """Return one of pixels that differ from two neighbours, which few of a large patch do."""
    same = (masks[:, 1:-1, 1:-1] == masks[:, 1:-1, 2:]) | (
        masks[:, 1:-1, 1:-1] == masks[:, 2:, 1:-1]
    )
    each = F.cross_entropy(logits, masks, reduction="none")[:, 1:-1, 1:-1]
    if int((~same).sum()) < same.numel() / 20:
        raise RuntimeError("stack expects a non-empty TensorList")
    return each[~same].mean()


def test_a_loss_of_small_objects_is_tried_on_them() -> None:
    """Issue: the trial had large patches alone, so the loss was refused, or ended with a traceback."""
    loss = SegmentationLoss(OptimizationConfig(loss=f"{__name__}:mean_of_single_pixels"))
    try_loss(loss, 2, torch.device("cpu"), (96, 96))


@pytest.mark.parametrize(("least", "expected"), [(0, {64}), (64, {64}), (65, {64, 256})])
def test_the_trial_is_of_small_images_with_few_objects_or_of_the_size_that_a_loss_needs(
    least: int,
    expected: set[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Issue: a loss by object had thousands of them, each a pixel, and took minutes."""
    monkeypatch.setenv("LEAST_SIDE", str(least))
    loss = SegmentationLoss(OptimizationConfig(loss=f"{__name__}:tried"))
    try_loss(loss, 5, torch.device("cpu"), (256, 256))
    seen = [[*map(float, line.split())] for line in capsys.readouterr().out.splitlines()]
    assert {side for side, _, _ in seen} == expected
    assert all(classes == 5 for _, classes, _ in seen)
    # Of 2 masks of 8 x 8 patches, whose sides are changes of the class.
    assert all(changes <= 2 * 2 * 7 for side, _, changes in seen if side > 64)
    monkeypatch.setenv("LEAST_SIDE", "257")
    with pytest.raises(ValueError, match="needs 257 pixels"):
        try_loss(loss, 5, torch.device("cpu"), (256, 256))


def mean_ce(logits: Tensor, masks: Tensor) -> Tensor:
    """Return a plain loss, where the ranks of the tests find it; the ranks' valid pixels are not as many."""
    return F.cross_entropy(logits, masks, ignore_index=255).nan_to_num()


def mean_square(logits: Tensor, masks: Tensor) -> Tensor:
    """Return one whose mean over ranks is that of all images."""
    return logits.softmax(1).square().mean()


def in_place(logits: Tensor, masks: Tensor) -> Tensor:
    """Return a loss that takes pixels to ignore for class 0, and probabilities, where it found the others."""
    masks[masks == 255] = 0
    return (logits.sigmoid_()[:, 1] - masks).square().mean()


def test_a_loss_that_works_in_place_leaves_the_other_term_as_it_is() -> None:
    torch.manual_seed(3)
    logits, masks = torch.randn(2, 2, 8, 8, requires_grad=True), torch.randint(0, 2, (2, 8, 8))
    masks[:, :3] = 255
    kept = logits.detach().clone(), masks.clone()
    loss = SegmentationLoss(OptimizationConfig(loss=f"{__name__}:in_place+ce"))
    found = try_loss(loss, 2, torch.device("cpu"))[0](logits, masks)
    found.total.backward()
    assert torch.equal(logits, kept[0]) and torch.equal(masks, kept[1])
    mine, others = (each.clone().requires_grad_() for each in kept[:1] * 2)
    own = in_place(mine.clone(), masks.clone())
    ce = F.cross_entropy(others, masks, ignore_index=255)
    (own + ce).backward()
    torch.testing.assert_close(found.total, own + ce)
    assert mine.grad is not None and others.grad is not None
    torch.testing.assert_close(logits.grad, mine.grad + others.grad)


def test_a_plain_loss_is_the_mean_over_ranks_and_a_line_says_so(
    own_loss: Path, ranks: Ranks
) -> None:
    cases = [{"loss": f"{__name__}:mean_ce"}, {"loss": f"{__name__}:mean_square"}]
    alone = ranks.run(1, jobs.loss_gradients, cases)[0]
    for uneven, even in ranks.run(2, jobs.loss_gradients, cases):
        assert np.abs(uneven[1] - alone[0][1]).max() > 1e-3 and uneven[0][0] != alone[0][0][0]
        for one, other in zip(even, alone[1], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
        assert np.abs(even[1]).max() > 1e-3
    make_set(own_loss, 6)
    argv = [*data_flags(own_loss), *FLAGS, "--loss", f"{__name__}:mean_ce", "--stop-after", "1"]
    status, out, err = call_train(argv, str(own_loss))
    assert status == 0, err
    assert out.count("mean over processes is used, so the run depends on their number") == 1


def small_ce(logits: Tensor, masks: Tensor) -> Tensor:
    """Return a loss that does not know pixels to ignore, and takes 2 images."""
    if len(masks) != 2:
        raise ValueError("two images") from KeyError(len(masks))
    return F.cross_entropy(logits, masks)


def test_a_loss_that_takes_no_pixels_to_ignore_is_a_line_where_there_are_some() -> None:
    """Issue: torch's traceback of a target out of bounds, as the augmentation makes such pixels."""
    loss = try_loss(
        SegmentationLoss(OptimizationConfig(loss=f"{__name__}:small_ce")), 2, torch.device("cpu")
    )[0]
    logits, masks = torch.randn(3, 2, 8, 8), torch.randint(0, 2, (3, 8, 8))
    loss(logits[:2], masks[:2])  # a run may have none of them
    masks[:, 0] = 255
    with pytest.raises(UserError, match=r"--loss .*: IndexError: Target 255 .*ignore_index=255"):
        loss(logits[:2], masks[:2])
    with pytest.raises(ValueError, match="two images") as raised:  # has another reason
        loss(logits, masks)
    assert isinstance(raised.value.__cause__, KeyError)  # as the user gave it


def test_sums_that_are_no_vectors_are_named(own_loss: Path) -> None:
    (own_loss / "my_losses.py").write_text(SOURCE.replace(".sum().view(1)}", ".sum()}"))
    with pytest.raises(UserError, match="--loss: squares is of 0 dimensions; sums must be vectors"):
        losses("my_losses:SquaredDice")


def test_code_runs_only_if_the_command_line_names_it(own_loss: Path) -> None:
    """Neither a stranger's recipe nor a stranger's checkpoint starts any."""
    make_set(own_loss, 6)
    mark = own_loss / "was_run"
    (own_loss / "my_losses.py").write_text(f"open({str(mark)!r}, 'w').close()\n{SOURCE}")
    (own_loss / "evil.yaml").write_text("loss: my_losses:SquaredDice\n")
    argv = [*data_flags(own_loss), *FLAGS, "--batch-size", "2"]
    status, _, err = call_train([*argv, "--config", "evil.yaml"], str(own_loss))
    said = "a recipe or a checkpoint starts no code; if you trust it, type --loss my_losses:SquaredDice"
    assert status == 2 and said in err and not mark.exists()
    with pytest.raises(UserError, match="starts no code"):  # it would type the loss for its trials
        tune.tune([*argv, "--config", "evil.yaml", "--vary", "learning_rate=1e-4..1e-2"])
    typed = ["--loss", "my_losses:SquaredDice"]
    assert call_train([*argv, *typed, "--stop-after", "1"], str(own_loss))[0] == 0
    mark.unlink()
    del sys.modules["my_losses"]
    status, _, err = call_train([*argv, "--resume"], str(own_loss))
    assert status == 2 and said in err and not mark.exists()
    assert call_train([*argv, *typed, "--resume"], str(own_loss))[0] == 0


@pytest.mark.parametrize(
    "name", ["dice+lovasz", "ce+focal", "ce+my_losses:A+focal", "my_losses:A+my_losses:B"]
)
def test_two_terms_of_a_kind_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"--loss .*(at most one region term|not one of)"):
        OptimizationConfig(loss=name).check()


def test_advice_has_the_form_of_the_loss() -> None:
    for name, advice in (("my_losses:A", r"my_losses:A\+ce"), ("lovasz", "lovasz_ce")):
        with pytest.raises(UserError, match=f"e.g. {advice}"):
            OptimizationConfig(loss=name, label_smoothing=10.0).check()


@pytest.mark.parametrize("name", ["squarish", "dice+squarish", "dice_"])
def test_an_unknown_name_is_refused_before_anything_is_read(name: str) -> None:
    with pytest.raises(UserError, match=r"--loss .*: not one of dice_ce, .*, nor MODULE:CLASS"):
        OptimizationConfig(loss=name).check()


class SquaredDice:
    """That of SOURCE, where the ranks of the tests find it."""

    column = "squared_dice"

    def __init__(self, options: OptimizationConfig) -> None:
        pass

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        overlap = (batch.probabilities * batch.truth).sum().view(1)
        return {"overlap": overlap, "squares": (batch.probabilities**2).sum().view(1)}

    def value(self, sums: dict[str, Tensor], weights: Tensor) -> Tensor:
        whole = sums["squares"] + sums["occurring"].sum()
        return 1 - 2 * sums["overlap"].squeeze() / whole.squeeze()


def test_an_own_loss_has_the_same_gradients_on_1_2_and_4_ranks(ranks: Ranks) -> None:
    """Not the mean of ratios: its sums are added over ranks first."""
    cases = [{"loss": f"{__name__}:SquaredDice"}, {"loss": f"{__name__}:SquaredDice+focal"}]
    alone = ranks.run(1, jobs.loss_gradients, cases)[0]
    for size in (2, 4):
        for found in ranks.run(size, jobs.loss_gradients, cases):
            for mine, theirs in zip(found, alone, strict=True):
                for one, other in zip(mine, theirs, strict=True):
                    assert np.abs(other).max() > 1e-3
                    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_a_run_with_an_own_loss_has_its_column_and_is_resumed(own_loss: Path, ranks: Ranks) -> None:
    make_set(own_loss, 10)
    argv = [
        *data_flags(own_loss), *FLAGS, "--loss", "my_losses:SquaredDice+ce", "--batch-size", "2",
    ]  # fmt: skip
    for more in (["--stop-after", "1"], ["--resume"]):
        outcomes = ranks.run(2, call_train, [*argv, *more], str(own_loss))
        assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    text = (own_loss / "checkpoints" / "metrics.csv").read_text()
    (row,) = csv.DictReader(text.splitlines())
    assert 0 < float(row["squared_dice"]) < 1 and float(row["cross_entropy"]) > 0
    assert "its source has changed" not in outcomes[0][1]
    (own_loss / "my_losses.py").write_text(SOURCE.replace("**2", "**3"))
    more = ["--resume", "--epochs", "2", "--loss", "my_losses:SquaredDice+ce"]
    sys.modules.pop("my_losses", None)
    argv = [*argv, *more, "--batch-size", "4"]
    status, _, err = call_train(argv, str(own_loss))
    said = "--loss my_losses:SquaredDice: its source has changed since the run's last save"
    assert status == 2 and f"error: {said}" in err and "by --changed-code" in err
    status, out, _ = call_train([*argv, "--changed-code"], str(own_loss))
    assert status == 0 and said in out
    saved = checkpoint.load(own_loss / "checkpoints" / "last.pt")
    assert saved["config"]["loss"] == "my_losses:SquaredDice+ce"
