"""`python -m unet_ddp learning-curve`: its trainings, what a kill leaves, the forecast, mistakes."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import data_flags, make_pair, make_set
from tests.ranks import call_train
from unet_ddp.checkpoints.weights import read_model
from unet_ddp.cli import parse_train
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.commands.train_parts import suit_network
from unet_ddp.data.matching import read_list
from unet_ddp.data.pairs import Pairs
from unet_ddp.errors import RunError, UserError
from unet_ddp.evaluation.validation_split import rebuild
from unet_ddp.extras.learning_curve import curve as module
from unet_ddp.extras.learning_curve.command import find_doubt, main, summarise
from unet_ddp.extras.learning_curve.curve import Point
from unet_ddp.extras.learning_curve.power_law import Forecast, PowerLaw
from unet_ddp.extras.transfer import choice
from unet_ddp.extras.tune.trainings import as_argv
from unet_ddp.runs.epoch_scores import read_epochs

NAMES = [f"images_{n:05d}_repeat_1" for n in (1, 2, 4, 9)]


class Trainer:
    """Stands for the processes that train, and for the scoring of their networks."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.argv: dict[str, list[str]] = {}
        self.scored: list[list[str]] = []
        self.stops_at: int | None = None
        self.status: Callable[[str], int] = lambda name: 0
        self.scatter = 0.0

    def start(self, place: Path, config: Any, changed: Any, **own: Any) -> int:
        if self.stops_at == len(self.done):
            raise KeyboardInterrupt
        self.argv[place.name] = as_argv(config, changed, **own)
        place.mkdir(exist_ok=True)
        (place / "last.pt").touch()
        Path(f"{place}.log").write_text("a line\nerror: --ema: no good\n", encoding="utf-8")
        self.done.append(place.name)
        return self.status(place.name)

    def score(self, source: Path, config: Any, pairs: Pairs) -> float:
        self.scored.append(list(pairs.names()))
        name = source.parent.name
        if self.stops_at == -len(self.done):  # before the score is noted
            raise KeyboardInterrupt
        images, repeat = map(int, re.findall(r"\d+", name))
        noise = np.random.default_rng([images, repeat]).normal(0, self.scatter)
        return float(1 - 0.8 * images**-0.5 * np.exp(noise))


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trainer:
    make_set(tmp_path, 10)
    monkeypatch.chdir(tmp_path)
    trainer = Trainer()
    monkeypatch.setattr(module, "start_training", trainer.start)
    monkeypatch.setattr(module, "score", trainer.score)
    return trainer


def run(*more: str, status: int = 0) -> None:
    argv = [*data_flags(Path()), "--batch-size", "1", "--epochs", "3", "--seed", "5", *more]
    assert main(argv, DATA_PARTS, suit_network) == status


def points(name: str = "learning-curve") -> dict[str, Any]:
    text = Path("checkpoints", name, "learning-curve.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["points"]
    return found


def test_trainings_take_equal_steps_on_nested_images(trainer: Trainer) -> None:
    """And the validation images, the same for all, are no part of any."""
    run("--width", "3", "--group-pattern", "(.+)x")
    assert trainer.done == [*points()] == NAMES
    trained = set[str]()
    for name, n in zip(NAMES, (1, 2, 4, 9), strict=True):
        config = parse_train(trainer.argv[name])
        pairs = read_list(Path(config.data.pairs_file or ""))
        names = {pair.name for pair in pairs if pair.side == "training"}
        assert len(pairs) == 10 and len(names) == n and trained < names
        trained = names
        assert config.network.width == 3 and config.optimization.seed == 5
        steps = 27  # three epochs of all
        assert config.launch.stop_after == str(steps)
        assert steps <= config.optimization.epochs * n < steps + n
        assert config.data.images is config.data.group_pattern is None
        assert points()[name] == {
            "images": n, "groups": n, "repeat": 1, "steps": steps,
            "dice": pytest.approx(1 - 0.8 * n**-0.5),
        }  # fmt: skip
    (validation,) = {tuple(names) for names in trainer.scored}
    assert len(validation) == 1 and validation[0] not in trained


@pytest.mark.parametrize(("few", "encoder"), [(10, "efficientnet-lite0"), (5, None)])
def test_all_sizes_train_the_network_that_suits_all_images(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int, encoder: str | None
) -> None:
    monkeypatch.setattr(choice, "FEW_IMAGES", few)
    monkeypatch.setattr(choice, "find_packaged", lambda name: Path("weights.pth"))
    make_set(tmp_path, 10, size=(64, 64))
    run("--group-pattern", "(.+)x")
    for argv in trainer.argv.values():
        config = parse_train(argv)
        assert config.network.encoder == encoder and "model" in config.given


def test_steps_of_several_processes_and_batches(trainer: Trainer) -> None:
    sizes = ["--sizes", "2", "4", "9"]
    run(*sizes, "--nproc", "2")
    assert all(parse_train(argv).launch.stop_after == "12" for argv in trainer.argv.values())
    run(*sizes, "--nproc", "2", "--images-per-step", "2", "--exp-name", "b")
    assert all(parse_train(argv).launch.stop_after == "12" for argv in trainer.argv.values())


def test_fewer_images_per_step_than_processes_is_the_training_s_mistake(trainer: Trainer) -> None:
    trainer.status = lambda name: 2
    with pytest.raises(UserError, match="--ema: no good"):
        run("--sizes", "4", "5", "9", "--nproc", "4", "--images-per-step", "2")


def test_a_curve_killed_at_any_moment_continues(
    trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a training, or after it but before its score is noted; what is finished is not repeated."""
    run("--exp-name", "whole")
    for moment in (0, 2, -1, -4):
        trainer.done, trainer.stops_at = [], moment
        name = f"killed{moment}"
        run("--exp-name", name, status=130)
        assert capsys.readouterr().out.endswith("stopped; continue with the same command\n")
        trainer.stops_at = None
        run("--exp-name", name)
        assert len(trainer.done) == 4 + (moment < 0) and {*trainer.done} == {*NAMES}
        assert points(name) == points("whole")
    trainer.done = []
    run("--exp-name", "whole")
    assert not trainer.done


def test_repeats_and_sizes_can_be_added(trainer: Trainer) -> None:
    run()
    run("--repeats", "3", "--sizes", "1", "3", "9")
    assert trainer.done[4:] == [
        "images_00003_repeat_1",
        *(f"images_{n:05d}_repeat_{k}" for k in (2, 3) for n in (1, 3, 9)),
    ]
    assert len(points()) == 4 + 7
    lists = [Path("checkpoints/learning-curve", f"images_00003_repeat_{k}.csv") for k in (1, 2, 3)]
    assert len({path.read_text(encoding="utf-8") for path in lists}) > 1
    seeds = {parse_train(argv).optimization.seed for argv in trainer.argv.values()}
    assert seeds == {5, 6, 7}


def test_groups_of_images_stay_together(trainer: Trainer, tmp_path: Path) -> None:
    for car in "abcdef":
        for view in range(3):
            make_pair(tmp_path / "cars", f"{car}_{view}")
    flags = data_flags(tmp_path / "cars")
    with pytest.raises(UserError, match=r"5 groups of 15 images .* as --sizes 1 2 3 5"):
        run(*flags)
    run(*flags, "--sizes", "1", "2", "3", "5")
    assert [point["images"] for point in points().values()] == [3, 6, 9, 15]
    assert [point["groups"] for point in points().values()] == [1, 2, 3, 5]


@pytest.mark.parametrize("status", [130, 143, -2, -15])
def test_a_training_that_is_stopped_stops_the_curve(trainer: Trainer, status: int) -> None:
    trainer.status = lambda name: status if name == NAMES[2] else 0
    run(status=130)
    assert [*points()] == NAMES[:2]


@pytest.mark.parametrize(("status", "kind"), [(2, UserError), (1, RunError)])
def test_a_training_that_fails_says_why(
    trainer: Trainer, status: int, kind: type[Exception]
) -> None:
    trainer.status = lambda name: status if name == NAMES[1] else 0
    with pytest.raises(kind, match=r"^--ema: no good \(checkpoints/.*repeat_1\.log\)$"):
        run()
    trainer.status, trainer.done = lambda name: 0, []
    run()
    assert trainer.done == NAMES[1:]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--sizes", "1", "2"], "9 images to train on: use 3 or more numbers up to 9, as --sizes 1 2 5 9"),
        (["--sizes", "0", "2", "4"], "--sizes 0 2 4: must be 1 or more"),
        (["--repeats", "0"], "--repeats 0: must be 1 or more"),
        (["--validation", "0"], "--validation: no images to score; use --validation 25"),
        (["--images", "nowhere"], "nowhere: not found"),
        (["--batch-size", "2"], "--batch-size: one step takes 2 images (2 for each of 1 process, --accumulate included), but there are 1"),
        (["--batch-size", "auto"], "--batch-size auto: all trainings take equal steps; use a number"),
        (["--patience", "3"], "see python -m unet_ddp learning-curve --help"),
        (["--resume"], "see python -m unet_ddp learning-curve --help"),
        (["--config", "mine.yaml"], "--patience: all trainings take equal steps; leave it out; --config mine.yaml sets"),
        (["--group-pattern", "(x)"], "none left to train on"),  # one group of all
        (["--checkpoints", "s3://b/runs"], "--checkpoints s3://b/runs: is an address"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(trainer: Trainer, argv: list[str], said: str) -> None:
    Path("mine.yaml").write_text("patience: 2", encoding="utf-8")
    with pytest.raises(UserError) as refused:
        run(*argv)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert not trainer.done and not Path("checkpoints").exists()


def test_another_curve_in_the_folder_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    trainer.stops_at = 2
    run(status=130)
    for argv, said in (
        (["--scale", "0.5"], "its curve has --scale 1.0, not 0.5"),
        (["--nproc", "2", "--sizes", "2", "4", "9"], "its curve has --nproc 1, not 2"),
    ):
        with pytest.raises(UserError, match=said):
            run(*argv)
    make_pair(tmp_path, "new")
    with pytest.raises(UserError, match="its images were others; use another --exp-name"):
        run()
    saved = Path("checkpoints/learning-curve/learning-curve.json")
    content = json.loads(saved.read_text(encoding="utf-8"))
    content["points"][NAMES[0]]["dice"] = "high"
    for text in ("{", "[]", '{"about": {}, "split": "", "points": []}', json.dumps(content)):
        saved.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=r"learning-curve\.json: corrupt"):
            run()
    saved.unlink()  # a new curve must not continue the trainings of this one
    with pytest.raises(UserError, match=r"repeat_1: of no learning curve; use another --exp-name"):
        run()


def test_validation_images_without_a_class_have_no_score(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "score", lambda *args: math.nan)
    with pytest.raises(UserError, match="--validation: no validation image has a class to score"):
        run()
    assert not points()


def test_a_pack_and_torchrun_are_refused(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from unet_ddp.__main__ import main as program

    assert program(["pack", *data_flags(Path()), "-o", "packed"]) == 0
    with pytest.raises(UserError, match="--images packed: is a pack; use the files it is of"):
        main(["--images", "packed", "--validation", "20"], DATA_PARTS, suit_network)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: learning-curve under torchrun: ")


# -- the forecast --------------------------------------------------------------------------


def make_points(*dice: float, repeats: int = 1) -> list[Point]:
    sizes = zip((8, 16, 32, 64), dice, strict=False)
    return [Point(n, n, repeat, 9, score) for n, score in sizes for repeat in range(repeats)]


def test_the_forecast_is_printed_and_drawn(
    trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.scatter = 0.03
    run("--repeats", "3")
    *_, head, a, b, c, d, law, check, twice, wrote = capsys.readouterr().out.splitlines()
    assert head.split() == ["images", "groups", "Dice", "of", "each", "training"]
    assert [line.split()[:2] for line in (a, b, c, d)] == [[n, n] for n in "1249"]
    mean, *each = map(float, d.split()[2:])
    assert len(each) == 3 and mean == pytest.approx(sum(each) / 3, abs=1e-4)
    a_, b_ = map(float, re.findall(r"0\.\d+", law))
    assert (a_, b_) == (pytest.approx(0.8, rel=0.05), pytest.approx(0.5, abs=0.05))
    found = re.fullmatch(
        r"twice the labels \(9 -> 18\): Dice (0\.\d+) \((0\.\d+) to (0\.\d+)\), 80% interval",
        twice,
    )
    assert found is not None
    dice, low, high = map(float, found.groups())
    assert low < dice < high and dice == pytest.approx(1 - 0.8 * 18**-0.5, abs=0.02)
    assert re.fullmatch(
        r"check: without the last row, the forecast for 9 is Dice 0\.\d+ \(.*\)", check
    )
    picture = Path("checkpoints/learning-curve/learning-curve.svg")
    assert wrote == f"wrote {picture}"
    text = picture.read_text(encoding="utf-8")
    assert all(
        word in text for word in ("Dice by labelled images", "power law", "trained", "80% interval")
    )
    first = text
    run("--repeats", "3")
    assert picture.read_text(encoding="utf-8") == first


@pytest.mark.parametrize(
    ("dice", "said"),
    [
        ((0.9, 0.8, 0.7, 0.6), "no forecast: Dice does not rise with the labels;"),
        ((0.5, 0.4, 0.9, 0.6), "is wider than the rise of 0.100 so far;"),
    ],
)
def test_points_that_allow_no_forecast(dice: tuple[float, ...], said: str) -> None:
    lines, chart = summarise(make_points(*dice))
    assert lines[-1].startswith("twice the labels (64 -> 128): no forecast: ")
    assert said in lines[-1] and lines[-1].endswith("; use more --repeats or --epochs")
    assert "interval" not in chart


def test_three_sizes_have_no_check() -> None:
    lines, _ = summarise(make_points(0.5, 0.7, 0.81))
    assert not [line for line in lines if line.startswith("check: ")]
    lines, _ = summarise([*make_points(0.5, 0.7, 0.81), *make_points(0.52, 0.69, 0.82)])
    assert [line for line in lines if line.startswith("check: ")]


# -- real trainings ------------------------------------------------------------------------


def test_the_score_is_that_of_the_training(tmp_path: Path) -> None:
    """At the threshold that its validation has found, not at 0.5."""
    images = make_set(tmp_path / "set", 8, size=(32, 32))
    argv = [*data_flags(images), "--width", "2", "--epochs", "1", "--validation", "25"]
    argv += ["--workers", "0", "--model", "unet", "--device", "cpu", "--precision", "float32"]
    call_train([*argv, "--checkpoints", "run"], str(tmp_path))
    source = tmp_path / "run/last.pt"
    model = read_model(source)
    assert model.labels is not None
    pairs = rebuild(model.run, source, model.labels).split.validation
    row = read_epochs(source.parent)[-1]
    found = module.score(source, parse_train(argv), pairs)
    assert found == pytest.approx(float(row["dice_at_threshold"]), abs=1e-6)
    assert found != pytest.approx(float(row["validation_dice"]), abs=0.01)


@pytest.mark.thorough
@pytest.mark.release  # tune's are killed in the same way
@pytest.mark.processes
def test_real_trainings_killed_and_continued(tmp_path: Path) -> None:
    """The scores are those of a curve that was not killed; on two processes nearly the same."""
    images = make_set(tmp_path / "set", 12, size=(32, 32))
    argv = [sys.executable, "-m", "unet_ddp", "learning-curve", *data_flags(images), "--width", "2"]
    argv += ["--validation", "17", "--workers", "0", "--epochs", "3", "--sizes", "2", "7", "10"]
    argv += ["--checkpoints", str(tmp_path)]
    last = tmp_path / "killed" / "images_00007_repeat_1" / "last.pt"
    command = [*argv, "--batch-size", "2", "--exp-name", "killed"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not last.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    found = {}
    for name, more in {
        "killed": ["--batch-size", "2"],
        "whole": ["--batch-size", "2"],
        "two": ["--batch-size", "1", "--nproc", "2"],
    }.items():
        done = subprocess.run(
            [*argv, *more, "--exp-name", name], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        file = tmp_path / name / "learning-curve.json"
        found[name] = json.loads(file.read_text())["points"]
        for point in found[name]:
            saved = torch.load(tmp_path / name / point / "last.pt", weights_only=True)
            position, steps = saved["position"], {"2": 1, "7": 3, "10": 5}[str(int(point[7:12]))]
            assert position["epoch"] * steps + position["step"] == 15
    assert found["killed"] == found["whole"] and len(found["whole"]) == 3
    for name, point in found["two"].items():
        assert point["dice"] == pytest.approx(found["whole"][name]["dice"], abs=0.05)


def test_an_interval_as_wide_as_the_rise_is_no_doubt() -> None:
    law, forecast = PowerLaw([1, 2, 4], [0.5, 0.6, 0.7]), Forecast(0.6, 0.5, 0.75)
    assert find_doubt(forecast, law, 0.25) == ""
    assert find_doubt(forecast, law, 0.24).endswith(" is wider than the rise of 0.240 so far")
    falling = PowerLaw([1, 2, 4], [0.7, 0.6, 0.5])
    assert find_doubt(forecast, falling, 0.25) == "Dice does not rise with the labels"
