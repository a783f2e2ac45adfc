"""`python -m unet_ddp tune`: draws, rungs, what is continued, and what a kill leaves."""

from __future__ import annotations

import json
import math
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import data_flags, make_set
from tests.extras.report.test_compare import HEADING, write_run
from unet_ddp.cli import parse_train
from unet_ddp.config import TrainConfig
from unet_ddp.distributed.stop_signal import die_with_parent
from unet_ddp.errors import RunError, UserError
from unet_ddp.extras.report.compare import compare
from unet_ddp.extras.tune import command as tune
from unet_ddp.extras.tune import trainings
from unet_ddp.extras.tune.command import Search, TuneConfig, main, parse_space, plan_rungs
from unet_ddp.extras.tune.trainings import as_argv

optuna = pytest.importorskip("optuna.distributions", reason="the extra tune is not installed")

VARY = ["--vary", "learning_rate=1e-4..1e-1", "width=2,3"]
ARGV = [*VARY, "--epochs", "9", "--seed", "5", "--nodata", "nan"]


class Trainer:
    """Stands for the processes that train: what was asked, and runs with scores by their settings."""

    def __init__(self, fails: Callable[[int], int] = lambda k: 0) -> None:
        self.done: list[tuple[int, int]] = []
        self.stops_at: int | None = None
        self.best = 0.8
        self.fails = fails

    def start(self, search: Search, k: int, epochs: int) -> int:
        if self.stops_at == len(self.done):
            raise KeyboardInterrupt
        if self.fails(k):
            Path(f"{search.place(k)}.log").write_text(
                "a line\nerror: --ema: no good\n", encoding="utf-8"
            )
            return self.fails(k)
        drawn = search.trials[k]["drawn"]
        rate, width = float(drawn["learning_rate"]), int(drawn["width"])
        score = self.best - abs(math.log10(rate) + 2) / 10
        place, rows = search.place(k), [(score + 0.001 * n, 0.5, 1.0) for n in range(epochs)]
        if not (place / "best.pt").exists():
            (place / ".lock").unlink()
            place.rmdir()
            write_run(place, [], learning_rate=rate, width=width)
        lines = [f"{n + 1},{5 * n + 5},{d},{i},{d},{s}\n" for n, (d, i, s) in enumerate(rows)]
        (place / "metrics.csv").write_text(HEADING + "".join(lines), encoding="utf-8")
        self.done.append((k, epochs))
        if self.stops_at == -len(self.done):  # killed before it could note the score
            raise KeyboardInterrupt
        return 0


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trainer:
    monkeypatch.chdir(tmp_path)
    trainer = Trainer()
    monkeypatch.setattr(Search, "start", lambda *args: trainer.start(*args))
    monkeypatch.setattr(tune, "compare", lambda places, output: [f"{len(places)} runs"])
    return trainer


def state(folder: str = "tune") -> dict:
    return json.loads(Path("checkpoints", folder, "tune.json").read_text(encoding="utf-8"))


def test_rungs() -> None:
    """Each has about a third of the trials before, and three times their epochs, up to all."""
    assert plan_rungs(9, 9) == [(9, 1), (3, 3), (1, 9)]
    assert plan_rungs(9, 10) == [(9, 2), (3, 4), (1, 10)]
    assert plan_rungs(20, 3) == [(20, 1), (6, 3)]
    assert plan_rungs(2, 30) == [(2, 30)] and plan_rungs(1, 1) == [(1, 1)]
    assert plan_rungs(27, 81) == [(27, 3), (9, 9), (3, 27), (1, 81)]


def test_flags_give_the_configuration(tmp_path: Path) -> None:
    """Switches, lists, what is drawn in words, and nothing that is the default already."""
    argv = "--precision float32 --crop-size 32 48 --lr auto --nproc 2 --mask-suffix=-mask --nodata -9999"
    config = parse_train(argv.split())
    drawn = {
        "bilinear": "true",
        "loss": "ce",
        "ema": 0.912345,
        "class_weights": "1 2",
        "precision": "auto",
    }
    words = as_argv(config, drawn, stop_after="3epochs")
    again = parse_train(words)
    assert again.data == config.data and again.network.bilinear
    assert again.optimization == replace(
        config.optimization, loss="ce", ema=0.912, class_weights=(1.0, 2.0), precision="auto"
    )
    assert again.launch == replace(config.launch, stop_after="3epochs")
    assert as_argv(config, {"bilinear": "false"}) == as_argv(config, {})
    assert as_argv(TrainConfig(), {}) == []
    typed = ["--model", "unet", "--lr", "0.001"]  # the defaults, in place of what suits the data
    assert as_argv(parse_train(typed), {}) == ["--model", "unet", "--learning-rate", "0.001"]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("reader: []\n")
    assert as_argv(parse_train(["--config", str(recipe)]), {}) == []


@pytest.mark.parametrize(
    ("word", "drawn"),
    [
        ("learning_rate=1e-4..1e-2", optuna.FloatDistribution(1e-4, 1e-2, log=True)),
        ("learning-rate=0.01..0.1", optuna.FloatDistribution(0.01, 0.1, log=True)),
        (
            "learning_rate=0.01..0.09",
            optuna.FloatDistribution(0.01, 0.09),
        ),  # of one order of magnitude
        ("width=2..20", optuna.IntDistribution(2, 20, log=True)),
        ("width=2..19", optuna.IntDistribution(2, 19)),
        ("class_weights=1 2,2 1", optuna.CategoricalDistribution(["1 2", "2 1"])),
    ],
)
def test_ranges_and_lists_are_what_is_drawn_from(word: str, drawn: Any) -> None:
    config = parse_train(["--vary", word], prog="", kind=TuneConfig)
    assert parse_space(config) == {word.partition("=")[0].replace("-", "_"): drawn}


def test_a_training_begins_or_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is interrupted is told to save, and waited for."""
    told: list[Any] = []

    class Process:
        def __init__(self, argv: list[str], *, stdout: Any, stderr: Any, preexec_fn: Any) -> None:
            assert argv[:4] == [sys.executable, "-m", "unet_ddp", "train"] and stdout is stderr
            assert (preexec_fn.func, preexec_fn.args) == (die_with_parent, (signal.SIGTERM,))
            stdout.write(b"said\n")
            told.append(parse_train(argv[4:]))

        def wait(self) -> int:
            told.append("wait")
            if told.count("wait") == 3:
                raise KeyboardInterrupt
            return 3

        def terminate(self) -> None:
            told.append("terminate")

    monkeypatch.setattr(trainings.subprocess, "Popen", Process)
    argv = [*VARY, "--load", "theirs.pt", "--epochs", "9"]
    search = Search(parse_train(argv, prog="", kind=TuneConfig), {}, tmp_path)
    search.trials = [{"drawn": {"width": "5"}, "dice": {}}]
    search.place(0).mkdir()
    assert search.start(0, 4) == 3
    (search.place(0) / "last.pt").touch()
    assert search.start(0, 7) == 3
    with pytest.raises(KeyboardInterrupt):
        search.start(0, 7)
    first, _, second, _, _, *end = told
    assert end == ["wait", "terminate", "wait"]
    for config, load, overwrite, resume, epochs in (
        (first, "theirs.pt", True, None, 4), (second, None, False, "", 7),
    ):  # fmt: skip
        assert (config.run.checkpoints, config.run.exp_name) == (str(tmp_path), "trial_000")
        assert (config.network.width, config.optimization.epochs) == (5, 9)
        assert (config.launch.overwrite, config.launch.stop_after) == (overwrite, f"{epochs}epochs")
        assert (config.launch.resume is None) == (resume is None)
        assert config.run.load == load
    assert Path(f"{search.place(0)}.log").read_text() == "said\n" * 3


def test_a_training_that_still_saves_is_waited_for(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a search that was killed."""
    calls, lock = [], trainings.lock_folder

    def lock_later(place: Path, flag: str, *, waits: bool = False) -> Any:
        calls.append((place.name, flag, waits))
        if place.name == "trial_001" and not waits:
            raise UserError("it is busy")
        return lock(place, flag)

    monkeypatch.setattr(trainings, "lock_folder", lock_later)
    assert main([*VARY, "--trials", "2", "--epochs", "1"]) == 0
    assert "waiting: it is busy\n" in capsys.readouterr().out
    assert ("trial_001", "--exp-name", True) in calls


def test_the_best_trials_are_continued(
    trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ARGV) == 0
    trials = state()["trials"]
    assert trainer.done[:9] == [(k, 1) for k in range(9)]
    by_score = sorted(range(9), key=lambda k: -trials[k]["dice"]["1"])
    assert trainer.done[9:] == [*((k, 3) for k in sorted(by_score[:3])), (by_score[0], 9)]
    assert len({json.dumps(trial["drawn"]) for trial in trials}) == 9
    assert all(1e-4 <= trial["drawn"]["learning_rate"] <= 1e-1 for trial in trials)
    *_, best, command = capsys.readouterr().out.splitlines()
    name = f"trial_{by_score[0]:03d}"
    assert best == f"best: checkpoints/tune/{name}/best.pt"
    words = shlex.split(command.partition(": ")[2])
    assert words[:4] == ["python", "-m", "unet_ddp", "train"]
    config, drawn = parse_train(words[4:]), trials[by_score[0]]["drawn"]
    assert (config.optimization.epochs, config.optimization.seed) == (9, 5)
    assert config.folder == Path("checkpoints/best")  # a run of its own, not in the search's folder
    assert config.optimization.learning_rate == pytest.approx(drawn["learning_rate"], rel=5e-3)
    assert config.network.width == int(drawn["width"])


def test_the_trials_are_compared(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "compare", compare)
    assert main([*VARY, "--trials", "3", "--epochs", "3"]) == 0
    assert "wrote checkpoints/tune/compare.html" in capsys.readouterr().out
    page = Path("checkpoints/tune/compare.html").read_text(encoding="utf-8")
    assert all(f"trial_00{k}" in page for k in range(3)) and "3 of 3" in page


def test_a_search_killed_at_any_moment_continues(trainer: Trainer) -> None:
    """After the draw and before the training, and after it but before its score is noted."""
    assert main([*ARGV, "--exp-name", "whole"]) == 0
    whole, count = state("whole"), len(trainer.done)
    for moment in (5, -9, -count):
        trainer.done, trainer.stops_at = [], moment
        name = f"killed{moment}"
        assert main([*ARGV, "--exp-name", name]) == 130
        trainer.stops_at = None
        assert main([*ARGV, "--exp-name", name]) == 0
        # Of what was not noted, metrics.csv may be ahead of the files: it is asked for again.
        assert len(trainer.done) == count + (moment < 0)
        assert len({*trainer.done}) == count
        assert state(name)["trials"] == whole["trials"]
    trainer.done = []
    assert main([*ARGV, "--exp-name", "whole"]) == 0 and not trainer.done


@pytest.mark.thorough
def test_later_draws_follow_the_scores(trainer: Trainer) -> None:
    """After the random trials, more lie near the optimum at 0.01."""
    assert (
        main(["--vary", "learning_rate=1e-6..1e0", "width=2,3", "--trials", "24", "--epochs", "1"])
        == 0
    )
    drawn = [abs(math.log10(t["drawn"]["learning_rate"]) + 2) for t in state()["trials"]]
    assert sum(drawn[16:]) < sum(drawn[:8])


def test_few_combinations_are_drawn_once(
    trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--vary", "width=2..3", "learning_rate=0.01,0.001", "--trials", "6", "--epochs", "1"]
    assert main(argv) == 0
    assert trainer.done == [(k, 1) for k in range(4)]
    assert "all 4 combinations are drawn" in capsys.readouterr().out


def test_a_trial_that_fails_is_left_out(
    trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.fails = lambda k: 1 if k == 4 else 0
    Path("mine.yaml").write_text("ema: 0.5")
    assert main([*ARGV, "--config", "mine.yaml", "--exp-name", "recipe"]) == 0
    assert (
        "failed: error: --ema: no good; --config mine.yaml sets --ema: " in capsys.readouterr().out
    )
    trainer.done = []
    assert main(ARGV) == 0
    assert "failed: error: --ema: no good\n" in capsys.readouterr().out
    assert 4 not in {k for k, _ in trainer.done} and not state()["trials"][4]["dice"]
    trainer.fails, trainer.done = lambda k: 0, []
    assert main(ARGV) == 0  # tried once more
    assert trainer.done[0] == (4, 1)


@pytest.mark.parametrize("status", [130, 143, -2, -15])
def test_a_training_that_is_stopped_stops_the_search(trainer: Trainer, status: int) -> None:
    """A signal that comes before a training listens ends it with a negative status."""
    trainer.fails = lambda k: status if k == 4 else 0
    assert main(ARGV) == 130
    assert trainer.done == [(k, 1) for k in range(4)]


def test_a_search_of_which_all_trials_fail_ends(trainer: Trainer) -> None:
    trainer.fails = lambda k: 2
    with pytest.raises(RunError, match="all trials failed; checkpoints/tune/trial_"):
        main(ARGV)
    assert len(state()["trials"]) == 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "--vary: name the settings to vary"),
        (["--vary", "widht=2,3"], "'widht=2,3': not a setting to vary; did you mean width?"),
        (["--vary", "epochs=2,3"], "'epochs=2,3': not a setting to vary"),
        (["--vary", "width=0,3"], "--width 0: must be 1 or more"),
        (["--vary", "learning-rate=0..1.0"], "--learning-rate 0.0: must be above 0"),
        (["--vary", "loss=dice,hinge"], "hinge"),
        (["--vary", "loss"], "'loss': a value is empty; use NAME=VALUE,VALUE"),
        (["--vary", "loss=dice_ce,"], "'loss=dice_ce,': a value is empty"),
        (["--vary", "ema=0.5..x"], "'ema=0.5..x': use a range like 1e-4..1e-2"),
        (["--vary", "ema=0.9..0.5"], "'ema=0.9..0.5': use a range like"),
        (["--vary", "width=2", "width=3"], "'width=3': is given twice; name all its values in one"),
        (["--vary", "lr=1e-3,1e-2", "learning_rate=1"], "'learning_rate=1': is given twice"),
        (["--vary", "validation=10,20"], "'validation=10,20': not a setting to vary"),
        (["--vary", "images=a,b"], "'images=a,b': not a setting to vary"),
        ([*VARY, "--validation", "0"], "--validation 0: there would be no scores to choose by; leave it out"),
        ([*VARY, "--config", "budget.yaml"], "--budget: a search has its own; leave it out; --config budget.yaml sets"),
        ([*VARY, "--resume"], "--resume; see python -m unet_ddp tune --help"),
        ([*VARY, "--checkpoints", "s3://b/runs"], "--checkpoints s3://b/runs: is an address"),
        ([*VARY, "--width", "0"], "--width 0: must be 1 or more"),
        ([*VARY, "--trials", "0"], "--trials 0: must be 1 or more"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(trainer: Trainer, argv: list[str], said: str) -> None:
    Path("budget.yaml").write_text("budget: 1h", encoding="utf-8")
    with pytest.raises(UserError) as refused:
        main(argv)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert not trainer.done


def test_another_search_in_the_folder_is_refused(trainer: Trainer) -> None:
    trainer.stops_at = 2
    assert main(ARGV) == 130
    for argv, said in (
        ([*ARGV[:1], "width=2,3", *ARGV[3:]], "its search has --vary"),
        ([*ARGV, "--scale", "0.5"], "its search has --scale 1.0, not 0.5"),
        ([*ARGV, "--nproc", "2"], "its search has --nproc 1, not 2"),
    ):
        with pytest.raises(UserError, match=said):
            main(argv)
    saved = Path("checkpoints/tune/tune.json")
    Path("checkpoints/tune/trial_777").mkdir()
    with pytest.raises(UserError, match=r"trial_777: not of the search in tune\.json; move such"):
        main(ARGV)
    content = state()
    for changed in (
        {"loss": "evil:Loss"},
        {"width": "99"},
        {"learning_rate": "1e-3 --model evil:network"},
    ):  # a stranger's; each is put on a command line
        trials = [{**trial, "drawn": {**trial["drawn"], **changed}} for trial in content["trials"]]
        saved.write_text(json.dumps({**content, "trials": trials}), encoding="utf-8")
        with pytest.raises(UserError, match=r"tune\.json: corrupt"):
            main(ARGV)
    saved.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"tune\.json: corrupt"):
        main(ARGV)
    saved.unlink()  # a new search must not continue the trials of this one
    with pytest.raises(UserError, match=r"trial_000: not of the search in tune\.json; move such"):
        main(ARGV)


def test_without_validation_or_optuna_or_under_torchrun(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.best = math.nan
    with pytest.raises(UserError, match="no score of validation to choose by; use --validation"):
        main(ARGV)
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(
            UserError,
            match=r"tune: needs optuna, which is not installed; python -m pip install -e '.*\[tune\]'",
        ):
            main(ARGV)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    with pytest.raises(SystemExit) as ended:
        main(ARGV)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: tune under torchrun: ")


@pytest.mark.thorough
@pytest.mark.release
@pytest.mark.processes
def test_real_trainings_killed_and_continued(tmp_path: Path) -> None:
    """The scores are those of a search that was not killed, and no training outlives its search."""
    images = make_set(tmp_path / "set", 12, size=(32, 32))
    argv = [sys.executable, "-m", "unet_ddp", "tune", "--vary", "learning_rate=1e-3..1e-1"]
    argv += [*data_flags(images), "--width", "2", "--validation", "17", "--workers", "0"]
    argv += ["--batch-size", "2", "--trials", "3", "--epochs", "3", "--checkpoints", str(tmp_path)]
    metrics = tmp_path / "killed" / "trial_001" / "last.pt"
    command = [*argv, "--exp-name", "killed"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not metrics.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    for name in ("killed", "whole"):
        done = subprocess.run(
            [*argv, "--exp-name", name], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    killed, whole = (
        json.loads((tmp_path / name / "tune.json").read_text()) for name in ("killed", "whole")
    )
    assert killed["trials"] == whole["trials"] and len(whole["trials"]) == 3
