"""The command line, recipes, saved settings, and which of them wins."""

from __future__ import annotations

import importlib.util
import io
import itertools
import math
import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from unet_ddp.cli import parse, parse_train, read_recipe, save_config, with_saved
from unet_ddp.commands.doctor import DoctorConfig
from unet_ddp.config import LaunchConfig, RunConfig, TrainConfig
from unet_ddp.config.run import parse_time
from unet_ddp.errors import Limit, UserError, how_to_install
from unet_ddp.extras.annotations.command import ImportConfig
from unet_ddp.extras.annotations.command import main as import_masks
from unet_ddp.extras.onnx.export import main as export
from unet_ddp.extras.packs.command import PackConfig
from unet_ddp.prediction.config import PredictConfig, parse_predict
from unet_ddp.settings import as_flag, settings_of

GROUPS = [field.name for field in fields(TrainConfig) if field.name not in ("given", "recipe")]


def value_of(config: TrainConfig, name: str) -> Any:
    name = "pairs_file" if name == "list" else name
    (value,) = (vars(getattr(config, group))[name] for group in GROUPS
                if name in vars(getattr(config, group)))  # fmt: skip
    return value


def refusal(*argv: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_train(argv)
    message = str(caught.value)
    assert "\n" not in message and "│" not in message and "─" not in message
    return message


# -- flags ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "settings"),
    [
        ("-e 7 -b 3 -l 0.1 -s 0.5 -v 25 -c 4 -f x.pt",
         {"epochs": 7, "batch_size": 3, "learning_rate": 0.1, "scale": 0.5, "validation": 25.0,
          "classes": 4, "load": "x.pt"}),
        ("-e7 --batch_size auto --lr=0.2 --exp_name a --precision float32 --ignore-index 255",
         {"epochs": 7, "batch_size": "auto", "learning_rate": 0.2, "exp_name": "a", "precision": "float32",
          "ignore_index": 255}),
        ("--epochs=7 --batch-size 3 --learning-rate 0.3 --bilinear --resume x/last.pt "
         "--checkpoints x",
         {"epochs": 7, "batch_size": 3, "learning_rate": 0.3, "bilinear": True,
          "resume": "x/last.pt", "checkpoints": "x"}),
        ("--resume --list pairs.csv --bilinear --cache --class-weights 1 2.5",
         {"resume": "auto", "list": "pairs.csv", "bilinear": True, "cache": True,
          "class_weights": (1.0, 2.5)}),
        ("--crop-size 64 96 --nodata -9999 --ignore-index #010203 --class-names e lr -e 3",
         {"crop_size": (64, 96), "nodata": -9999.0, "ignore_index": 0x010203, "epochs": 3,
          "class_names": ("e", "lr")}),
        ("--ignore-index #FFa000 --local-rank=1", {"ignore_index": 0xFFA000}),
        ("--local_rank=0 --resume -e 2", {"epochs": 2, "resume": "auto"}),
        ("--amp", {"precision": "auto"}),
        ("-e 2 --no_amp --bilinear", {"epochs": 2, "precision": "float32", "bilinear": True}),
        ("", {}),
    ],
)  # fmt: skip
def test_flags(argv: str, settings: dict[str, Any]) -> None:
    """They are noted as given, and nothing else is."""
    config = parse_train(argv.split())
    assert {name: value_of(config, name) for name in settings} == settings
    assert config.given == settings.keys()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--no-amp --precision bfloat16", "--no-amp and --precision are one setting"),
        ("--precision=bfloat16 --amp", "--amp and --precision are one setting"),
        ("--amp --no_amp", "--amp and --no-amp are one setting"),
    ],
)
def test_precision_is_typed_once(argv: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}; use one of them$"):
        parse_train(argv.split())


@pytest.mark.parametrize(
    ("kind", "argv", "said"),
    [
        (TrainConfig, "--class-names a b --class-names c", "--class-names a b and --class-names c: give it once, with all values"),
        (TrainConfig, "--callback a:b --callback c:d", "--callback a:b and --callback c:d: give it once, with all values"),
        (PredictConfig, "x.png --model a -m b", "--model a and --model b: give it once, with all values"),
    ],
)  # fmt: skip
def test_what_a_second_flag_would_lose_is_said(kind: Any, argv: str, said: str) -> None:
    """Of values of which there may be any number: who types them twice wants both."""
    with pytest.raises(UserError) as raised:
        parse(kind, argv.split(), prog="p")
    assert str(raised.value) == said


def test_an_output_may_be_repeated() -> None:
    config = parse(PredictConfig, ["--write", "a", "--write", "b", "x.png"], prog="p")
    assert config.write == ("a", "b") and config.inputs == ("x.png",)


def test_a_script_may_be_followed_by_other_values() -> None:
    """And the same values may be given again."""
    flags = "--images c --masks b --lr 1 --epochs 3 -e 5 --images=a --lr 2 --class-names a b"
    flags += " --crop-size 32 32 --crop-size 64 64 --loss-weights 1 2 --loss-weights 1 1"
    config = parse_train([*flags.split(), "--class_names", "a", "b"])
    assert (config.data.images, config.data.masks) == ("a", "b")
    assert config.data.class_names == ("a", "b")
    assert (config.optimization.epochs, config.optimization.learning_rate) == (5, 2)
    assert (config.data.crop_size, config.optimization.loss_weights) == ((64, 64), (1, 1))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--nonsense 3", "--nonsense"),
        ("--epochs many", "--epochs"),
        ("--batch-size some", "--batch-size"),
        ("--ignore-index #12345", "--ignore-index"),
        ("--batch-norm wild", "--batch-norm"),
        ("--given epochs", "--given"),
        ("images", "images"),
    ],
)
def test_what_can_not_be_read_is_one_line(
    monkeypatch: pytest.MonkeyPatch, argv: str, said: str
) -> None:
    """However narrow the terminal for which tyro draws its boxes, and whatever it draws them with."""
    message = refusal_anywhere(monkeypatch, *argv.split())
    assert said in message and message.endswith("; see train.py --help") and "---" not in message


def refusal_anywhere(monkeypatch: pytest.MonkeyPatch, *argv: str) -> str:
    """Return the message, which is the same for all terminals."""
    messages = set()
    for columns, encoding in itertools.product(("40", "200"), ("utf-8", "latin-1", "ascii")):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        messages.add(refusal(*argv).replace(" ,", ","))  # a line of a box may end before a comma
    (message,) = messages
    return message


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--epoch 5", "--epoch, 5; did you mean --epochs?"),
        ("--save_every_step=3", "--save_every_step=3; did you mean --save-every-steps?"),
        ("--imagse a --nonsense --learning-rat 5", "5; did you mean --images, --learning-rate?"),
        ("--checkpointin", "--checkpointin; did you mean --checkpointing?"),
        ("--rate 5", "--rate, 5; did you mean --lr?"),
        ("--no-bilinea", "--no-bilinea; did you mean --no-bilinear?"),
    ],
)
def test_the_flag_that_was_meant_is_named(
    monkeypatch: pytest.MonkeyPatch, argv: str, said: str
) -> None:
    message = refusal_anywhere(monkeypatch, *argv.split())
    assert message.startswith("Unrecognized options: --")
    assert message.endswith(f"{said} see train.py --help")


def test_text_that_a_shell_left_empty_or_did_not_expand(recipe: Any) -> None:
    """`--load "$MODEL"` of an unset variable must not train from scratch; `=` keeps bash from ~."""
    for name in ("load", "resume", "exp-name", "checkpoints", "images", "config", "class-names"):
        assert refusal(f"--{name}", "") == f"--{name} '': is empty; give a value, or leave it out"
        assert (
            refusal(f"--{name}=~/a")
            == f"--{name} ~/a: ~ was not expanded; write the folder in full"
        )
    assert parse_train(["--mask-suffix", ""]).data.mask_suffix == ""  # named as the images
    assert "--load '': is empty" in refusal("--config", str(recipe("load: ''")))
    assert "--images ~/a: ~ was" in refusal("--config", str(recipe("images: ~/a\nmasks: b")))
    with pytest.raises(UserError, match=r"^inputs '': is empty"):
        parse_predict(["a.png", ""])


def test_every_flag_has_its_line_of_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        parse_train(["--help-all"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for name in [*TrainConfig().to_dict(), *vars(LaunchConfig())]:
        assert re.search(rf"--{name.replace('_', '-')}\b", text), name
    assert "default: None" not in text and "default: )" not in text
    assert "default: 0.001" in text and "--given" not in text


SHORT = [
    "images", "masks", "exp-name", "resume", "config", "epochs", "budget", "batch-size",
    "learning-rate", "scale", "instances", "augmentation", "encoder", "encoder-weights", "nproc",
    "device",
]  # fmt: skip


def test_the_short_help_fits_on_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has examples and the flags that most runs need; the rest, extras last, is in --help-all."""
    monkeypatch.setenv("COLUMNS", "80")
    texts = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            parse_train([flag])
        texts.append(capsys.readouterr().out)
    short, whole = texts
    assert len(short.splitlines()) <= 40 and max(map(len, short.splitlines())) <= 80
    shown = re.findall(r"^  (?:-\w, )?--([\w-]+)", short, flags=re.M)
    assert sorted(shown) == sorted(SHORT)
    assert len(re.findall(r"^ *.*(?:python|torchrun.*) train\.py ", short, flags=re.M)) == 4
    extras = whole.partition("\nExtras:\n")[2]
    assert "--instances" in extras and "--wandb" in extras and "--images" not in extras
    assert "default: None" not in whole and "(default: True)" not in whole


@pytest.mark.parametrize("kind", [TrainConfig, PredictConfig, ImportConfig])
def test_the_help_is_the_same_without_docstrings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: Any
) -> None:
    """python -OO strips them, and a dataclass without one shows its signature."""

    def show() -> str:
        with pytest.raises(SystemExit):
            parse(kind, ["--help-all"], prog="x")
        return capsys.readouterr().out

    before = show()
    for each in (kind, *get_type_hints(kind).values()):
        if is_dataclass(each):
            monkeypatch.setattr(each, "__doc__", "Config(images: object = <factory>)")
    assert show() == before


def test_the_help_names_what_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(ImportConfig, ["--help"], prog="import")
    text = " ".join(capsys.readouterr().out.split())
    assert "searched. (required)" in text and "MISSING" not in text
    with pytest.raises(SystemExit):
        parse_train(["--help-all"])
    assert "(default: 1 1)" in " ".join(capsys.readouterr().out.split())


def test_a_command_has_the_flags_that_it_uses(recipe: Any) -> None:
    """The others of a recipe are not its business."""
    path = str(recipe("lr: 0.1\nscale: 0.5"))
    for kind, flags in ((DoctorConfig, "--batch-size 2 --invert"), (PackConfig, "-o a --list b")):
        config = parse_train([*flags.split(), "--config", path, "--seed", "3"], prog="x", kind=kind)
        assert config.data.scale == 0.5 and config.optimization.seed == 3
        for flag in ("--lr=1", "--width=3", "--exp-name=a", "--cache"):
            with pytest.raises(UserError, match=rf"{flag[:6]}.*; see x --help$"):
                parse_train([flag], prog="x", kind=kind)


# -- limits and rules ----------------------------------------------------------------------


def configure(**settings: Any) -> TrainConfig:
    """A configuration of these settings, checked as all are."""
    launch = {name: settings.pop(name) for name in vars(LaunchConfig()) if name in settings}
    names = ("load", "wandb")  # never taken from a checkpoint
    run = RunConfig(**{name: settings.pop(name) for name in names if name in settings})
    return with_saved(TrainConfig(run=run, launch=LaunchConfig(**launch)), settings)


def check_refused(message: str, **settings: Any) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        configure(**settings)


LIMITS: dict[str, tuple[list[Any], list[Any]]] = {  # values at the edge, and those beyond it
    "scale": ([1], [0, 1.01, math.nan]),
    "ground_resolution": ([0.01, 30], [0, -1, math.nan, math.inf]),
    "crop_size": ([[16, 16]], [[15, 16], [16, 15]]),
    "validation": ([0, 1, 99.9], [-0.1, 0.2, 100]),
    "window": ([32, 512], [0, 31]),
    "blocks": ([], [0]),  # it needs --window
    "validation_images": ([1], [0]),
    "channels": ([1], [0]),
    "classes": ([2, 255], [1, 256]),
    "mask_threshold": ([0], [-1]),
    "ignore_index": ([-(2**31), 2**31 - 1], [-(2**31) - 1, 2**31]),
    "balance": ([0, 100], [-0.1, 0.5, 100.1, math.nan]),
    "scale_jitter": ([[0.1, 10], [1, 1]], [[0.09, 1], [1, 10.1], [-1, 1]]),
    "width": ([1], [0]),
    "epochs": ([1], [0]),
    "epoch_steps": ([1], [0]),
    "patience": ([0], [-1]),
    "batch_size": ([1, "auto"], [0]),
    "accumulate": ([1], [0]),
    "images_per_step": ([1], [0]),
    "learning_rate": ([1e-9], [0, math.nan, math.inf]),
    "warmup": ([0, 1, 99.9], [-0.1, 0.05, 100]),
    "encoder_rate": ([0.01, 2], [0]),
    "weight_decay": ([0], [-0.1, math.inf]),
    "clip": ([0, math.inf], [-0.1]),
    "loss_weights": ([[0, 1]], [[-0.1, 1], [math.inf, 1]]),
    "class_weights": ([[0, 1]], [[1, -0.1], [-0.1, 1], [1, math.inf]]),
    "label_smoothing": ([0, 90], [-0.1, 0.1, 100]),
    "hard_pixels": ([1, 100], [0, 0.25, 101]),
    "boundary_weight": ([0], [-0.1, math.inf]),
    "ema": ([0, 0.999], [-0.1, 1]),
    "seed": ([0], [-1]),
    "save_every": ([0], [-1]),
    "save_every_steps": ([0], [-1]),
    "save_every_minutes": ([0], [-0.1]),
    "nproc": ([1], [0]),
    "workers": ([0], [-1]),
    "timeout": ([0.1], [0]),
    "max_bad_steps": ([1], [0]),
    "skip_bad_files": ([0], [-1]),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_a_run(name: str) -> None:
    allowed, refused = LIMITS[name]
    for value in allowed:
        configure(**{name: value})
    for value in refused:
        with pytest.raises(UserError, match=f"^--{name.replace('_', '-')} .*: must be"):
            configure(**{name: value})


def test_every_limit_is_tested() -> None:
    limited = set()
    for group in GROUPS:
        kind = type(getattr(TrainConfig(), group))
        for name, hint in get_type_hints(kind, include_extras=True).items():
            if any(isinstance(part, Limit) for part in get_args(hint)):
                limited.add(name)
    assert limited == LIMITS.keys()


def test_limits_and_rules_hold_on_the_command_line() -> None:
    assert refusal("-e", "0") == "--epochs 0: must be 1 or more"
    assert refusal("--validation", "0.2") == (
        "--validation 0.2: must be 0, or 1 or more and below 100 percent"
    )
    assert refusal("--masks", "x") == "--images and --masks: use both or neither"


def test_messages_of_limits() -> None:
    check_refused("--batch-size 0: must be 1 or more, or auto", batch_size=0)
    check_refused("--scale 2.0: must be above 0 and at most 1", scale=2)
    check_refused("--crop-size 8 64: must be 16 or more", crop_size=[8, 64])
    check_refused(
        "--classes 1: must be 2 or more and at most 255; the background is one of them", classes=1
    )


PAIRS, VAL_PAIRS = {"images": "a", "masks": "b"}, {"val_images": "a", "val_masks": "b"}
FOLD = {"fold": "1/2"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"list": "a"}, PAIRS), ({"list": "a"}, VAL_PAIRS), ({"list": "a"}, FOLD),
        (FOLD, VAL_PAIRS),
        ({"palette": "a"}, {"invert": True}), ({"mask_threshold": 0}, {"palette": "a"}), ({"class_names": ["a"]}, {"palette": "a"}),
        ({"mask_threshold": 0}, {"classes": 2}),
        ({"compile": True}, {"checkpointing": True}), ({"resume": "auto"}, {"load": "a"}),
    ],
)  # fmt: skip
def test_settings_that_exclude_each_other(one: dict[str, Any], other: dict[str, Any]) -> None:
    flags = [f"--{next(iter(settings)).replace('_', '-')}" for settings in (one, other)]
    check_refused(f"{flags[0]} and {flags[1]}: use one of them", **one, **other)
    configure(**one)
    configure(**other)


def test_settings_that_need_each_other() -> None:
    for name, value in VAL_PAIRS.items():
        check_refused("--val-images and --val-masks: use both or neither", **{name: value})


def test_a_pack_takes_the_place_of_all_folders(tmp_path: Path) -> None:
    """--images without --masks is a pack: masks, lists and folders of a recipe or a run are void."""
    check_refused("--images and --masks: use both or neither", masks="a")
    (tmp_path / "r.yaml").write_text("images: a\nmasks: b\nval_images: c\nval_masks: d\nseed: 3\n")
    flags = ["--config", str(tmp_path / "r.yaml"), "--images", "pack"]
    config = parse_train(flags)
    assert (config.data.images, config.data.masks, config.data.val_images) == ("pack", None, None)
    config = parse_train([*flags, "--masks", "e"])
    assert (config.data.masks, config.data.val_images) == ("e", "c")
    saved = {"list": "pairs.csv", "seed": 3, "scale": 0.5}
    config = with_saved(parse_train(["--images", "pack", "--seed", "4"]), saved)
    assert (config.data.images, config.data.pairs_file, config.data.scale) == ("pack", None, 0.5)


def test_a_list_takes_the_place_of_a_recipes_folders(tmp_path: Path) -> None:
    """But not of folders on the same command line."""
    (tmp_path / "r.yaml").write_text("images: a\nmasks: b\nval_images: c\nval_masks: d\nseed: 3\n")
    config = parse_train(["--config", str(tmp_path / "r.yaml"), "--list", "pairs.csv"])
    data = config.data
    assert (data.pairs_file, data.images, data.masks) == ("pairs.csv", None, None)
    assert (data.val_images, data.val_masks, config.optimization.seed) == (None, None, 3)
    with pytest.raises(UserError, match="--list and --images: use one of them"):
        parse_train(["--list", "pairs.csv", "--images", "a", "--masks", "b"])


def test_a_budget_takes_the_place_of_epochs(recipe: Any) -> None:
    for text, seconds in (("90s", 90), ("30m", 1800), ("1.5h", 5400)):
        assert parse_time(str(parse_train(["--budget", text]).launch.budget)) == seconds
    for text in ("30", "m", "-3m", "2d", "1e3s", "9999999h"):
        with pytest.raises(UserError, match=r"^--budget '.*': not a time; use one like 90s, 30m"):
            parse_train([f"--budget={text}"])
    with pytest.raises(UserError, match=r"^--budget and --epochs: use one of them$"):
        parse_train(["--budget", "1h", "-e", "3"])
    config = parse_train(["--config", str(recipe("budget: 1h\n")), "-e", "3"])
    assert (config.launch.budget, config.optimization.epochs) == (None, 3)  # a flag wins
    both = str(recipe("epochs: 7\nbudget: 1h\n"))
    for more in ([], ["-e", "3"], ["--budget", "2h"]):
        with pytest.raises(UserError, match=r"yaml: --budget and --epochs: use one of them$"):
            parse_train(["--config", both, *more])
    path = str(recipe("epochs: 7\nbatch_size: 2\n"))
    config = parse_train(["--config", path, "--budget", "1h"])
    assert "epochs" not in config.given and "batch_size" in config.given
    assert with_saved(config, {"epochs": 5}).optimization.epochs == 5  # --resume: the plan's


def test_other_rules() -> None:
    assert configure(fold="3/3").data.read_fold() == (3, 3)
    for fold in ("4/3", "0/3", "1/1", "1/x"):
        with pytest.raises(
            UserError, match=f"^--fold {fold}: use I/K, the I-th of K folds, e.g. 1/5$"
        ):
            configure(fold=fold)
    for text in ("0", "-1", "3 epochs", "many"):
        check_refused(
            f"--stop-after {text}: use a number of steps, as 500, or of epochs, as 3epochs",
            stop_after=text,
        )
    check_refused("--scale-jitter 2 0.5: use 0.5 2, LOW first", scale_jitter=[2, 0.5])
    for loss, allowed, refused in (
        ("dice_ce", [[0, 1], [1, 0]], [0, 0]),
        ("focal", [[0, 1]], [1, 0]),
        ("tversky", [[1, 0]], [0, 1]),
    ):
        for weights in allowed:
            configure(loss=loss, loss_weights=weights)
        shown = " ".join(map(str, refused))
        check_refused(
            f"--loss-weights {shown}: one of a term of --loss {loss} must be above 0",
            loss=loss,
            loss_weights=refused,
        )
    check_refused(
        "--class-weights 0 0: one must be above 0, or nothing is learnt", class_weights=[0, 0]
    )
    for setting in ({"label_smoothing": 10}, {"hard_pixels": 9}, {"boundary_weight": 1}):
        configure(loss="focal", **setting)
        check_refused(
            "--loss tversky has no pixel term for --label-smoothing, --hard-pixels or "
            "--boundary-weight; use one with a term ce or focal, e.g. tversky_ce",
            loss="tversky", **setting,
        )  # fmt: skip
    configure(resume="a/last.pt", overwrite=True)
    check_refused(
        "--resume continues the run, --overwrite deletes it: use one of them",
        resume="auto", overwrite=True,
    )  # fmt: skip
    configure(mask_threshold=0, class_names=["a", "b"])
    configure(group_pattern="(.)_")
    check_refused("--group-pattern 'abc': has no group, as in '(.+)_'", group_pattern="abc")
    with pytest.raises(UserError, match=r"^--group-pattern '\(': not a regular expression: miss"):
        configure(group_pattern="(")


def test_wandb_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_refused(
        f"--wandb: needs wandb, which is not installed; {how_to_install('wandb')}", wandb=True
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "wandb" or None)
    assert configure(wandb=True).run.wandb


def test_resume_from_a_file_stays_in_its_folder(tmp_path: Path) -> None:
    file = str(tmp_path / "a" / "x.pt")
    config = parse_train(["--resume", file, "--checkpoints", "elsewhere"])
    assert config.folder == tmp_path / "a" and config.resume_file == Path(file)
    assert refusal("--resume", file, "--exp-name", "b") == (
        f"--resume {file} continues in {tmp_path / 'a'}: leave --exp-name out, or start a new run "
        "from these weights with --load"
    )
    assert parse_train(["--resume", "--exp-name", "a"]).run.exp_name == "a"
    folder = str(tmp_path)
    assert refusal("--resume", folder) == (
        f"--resume {folder}: is a folder; use --resume {folder}/last.pt"
    )
    same = parse_train(["--resume", file, "--checkpoints", str(tmp_path), "--exp-name", "a"])
    assert same.folder == tmp_path / "a" and same.run.exp_name is None


# -- recipes -------------------------------------------------------------------------------


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("text", "argv", "flags"),
    [
        ("lr: -1", [], "--learning-rate"),
        ("scale: 0.5\nlr: -1", [], "--learning-rate"),
        ("classes: 3\nmask_threshold: 0", [], "--mask-threshold, --classes"),
        ("load: ~/a", [], "--load"),
        ("group_pattern: '('", [], "--group-pattern"),
        ("exp_name: a", ["--resume", "b/last.pt"], "--exp-name"),
    ],
)
def test_an_error_of_a_recipes_setting_names_the_recipe(
    recipe: Any, text: str, argv: list[str], flags: str
) -> None:
    """Issue: it named flags that nobody had typed."""
    path = recipe(text)
    advice = "give another value on the command line, or delete it there"
    assert refusal("--config", str(path), *argv).endswith(
        f"; --config {path} sets {flags}: {advice}"
    )


def test_an_error_of_a_flag_does_not_name_the_recipe(recipe: Any) -> None:
    path = str(recipe("lr: 0.1\nbilinear: true"))
    message = refusal("--config", path, "--lr", "-1")
    assert message == "--learning-rate -1.0: must be above 0, or auto"
    assert path not in refusal("--config", path, "--no-bilinear", "--fold", "3")


def test_recipe_sets_defaults_and_the_command_line_wins(recipe: Any) -> None:
    path = str(
        recipe("epochs: 7\nbatch-size: 2\nprecision: float32\nclass_weights: [1, 2]\nexp_name:\n")
    )
    config = parse_train(["--config", path, "-e", "9"])
    assert config.optimization.epochs == 9
    assert config.optimization.batch_size == 2
    assert config.optimization.precision == "float32"
    assert config.optimization.class_weights == (1.0, 2.0)
    assert config.run.exp_name is None
    assert config.given == {"config", "epochs", "batch_size", "precision", "class_weights"}
    assert parse_train(["--config", path, "--precision", "auto"]).optimization.precision == "auto"


def test_a_flag_takes_the_place_of_a_recipes_settings_that_it_excludes(recipe: Any) -> None:
    """--config cells --instances keeps touching cells apart, though the recipe has two classes."""
    config = parse_train(["--config", "cells", "--instances"])
    assert config.data.mask_threshold is None and config.data.instances  # type: ignore[attr-defined]
    path = str(recipe("load: a.pt\nfold: 1/3"))
    config = parse_train(["--config", path, "--resume", "--list", "a.csv"])
    assert config.run.load is None and config.data.fold is None


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("epochs: 7", "epochs", 7),
        ("epochs: '7'", "epochs", 7),
        ("batch_size: auto", "batch_size", "auto"),
        ("batch_size: 8", "batch_size", 8),
        ("lr: auto", "learning_rate", "auto"),
        ("lr: 1e-3", "learning_rate", 1e-3),  # text to YAML
        ("learning-rate: 1", "learning_rate", 1.0),
        ("l: 0.5", "learning_rate", 0.5),
        ("exp_name: 2024", "exp_name", "2024"),
        ("exp_name: 007", "exp_name", "007"),  # text as written, whatever YAML takes it for
        ("exp_name: 12:30", "exp_name", "12:30"),
        ("exp_name: 1_000", "exp_name", "1_000"),
        ("exp_name: 2020-01-01", "exp_name", "2020-01-01"),
        ("encoder: yes", "encoder", "yes"),
        ("class_names: [010, no]", "class_names", ("010", "no")),
        ("exp_name: '-x'", "exp_name", "-x"),
        ("bilinear: true", "bilinear", True),
        ("crop_size: [64, 96]", "crop_size", (64, 96)),
        ("class_names: [--epochs, b]", "class_names", ("--epochs", "b")),
        ("ignore_index: '#0000ff'", "ignore_index", 255),
        ("ignore_index: 7", "ignore_index", 7),
        ("nodata: -9999", "nodata", -9999.0),
        ("list: a.csv", "list", "a.csv"),
        ("precision: float16", "precision", "float16"),
        ("fold: 1/5", "fold", "1/5"),
        ("stop_after: 70", "stop_after", "70"),
        ("workers: 0", "workers", 0),
        ("resume: true", "resume", "auto"),  # as in Python: the flag without a file
        ("resume: false", "resume", None),
        ("resume: 'true'", "resume", "true"),
        ("resume: last.pt", "resume", "last.pt"),
    ],
)
def test_recipe_values_have_the_type_of_their_setting(
    recipe: Any, line: str, name: str, value: object
) -> None:
    (found,) = read_recipe(recipe(line)).items()
    assert found == (name, value) and type(found[1]) is type(value)


@pytest.mark.parametrize(
    "line",
    [
        "epochs: many", "epochs: 1.5", "epochs: true", "epochs: [1]", "epochs: 2020-01-01",
        "scale: true", "scale: [1]", "scale: {x: 1}", "bilinear: 1", "bilinear: 'true'", "model: [unet]",
        "crop_size: 64", "crop_size: [64]", "crop_size: [64, 64, 64]",
        "crop_size: [64, x]", "class_weights: [1, [2]]", "class_names: ab", "batch_size: some",
        "precision: float64", "ignore_index: '#12'", "epochs: 010", "seed: 1:30",
    ],
)  # fmt: skip
def test_recipe_values_of_another_type(recipe: Any, line: str) -> None:
    """One line that names the file and the key."""
    path, key = recipe(line), line.split(":")[0]
    with pytest.raises(UserError) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"{path}: {key}: ")
    assert str(caught.value).endswith(f"a value of --{key.replace('_', '-')}; see train.py --help")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("epoch: 3", "unknown key 'epoch'; did you mean epochs?"),
        ("qqq: 3", "unknown key 'qqq'; see train.py --help"),
        ("amp: false", "unknown key 'amp'; use precision: auto, or float32"),
        ("max-steps: 7", "unknown key 'max-steps'; did you mean max_bad_steps?"),
        ("data: {scale: 1}", "unknown key 'data'"),
        ("config: other.yaml", "unknown key 'config'"),
        ("given: [epochs]", "unknown key 'given'"),
        ("3: 3", "unknown key '3'"),
        ("seed: 1\nlr: 1\nlr: 2", "'lr' stands there twice; delete one of the lines"),
        ("lr: 1\nlearning-rate: 2", "lr and learning-rate are one setting; use one of them"),
        ("ignore_index: #ff0000", "ignore_index: #ff0000 is a comment to YAML; write '#ff0000'"),
        ("- a\n- b", "settings are lines of 'name: value'"),
        ("", "settings are lines of 'name: value'"),
        ("a: [", "not a YAML file"),
        ("seed: !!python/name:os.getcwd", "not a YAML file"),
        ("a: &a [1]\nb: *a", "not a YAML file of plain values and lists"),
        ("epochs: {a: 1}", "epochs: a dict of 1 can't be"),
        ("epochs: [[[1]]]", "epochs: a list of 1 can't be"),
        ("epochs: [[[[1]]]]", "not a YAML file of plain values and lists"),
        ("epochs: " + "[" * 3000 + "]" * 3000, "not a YAML file of plain values and lists"),
        ("{" * 3000, "not a YAML file of plain values and lists"),
        ("epochs: " + "9" * 5000, "not a YAML file"),
        ("epochs: 2026-13-45", "not a YAML file"),
        ("class_names: [" + "aaaaaaaa, " * 20000 + "]", "more than 100 kB"),
        ("epochs: \0", "not a YAML file"),
        ("x" * 1000 + ": 3", "unknown key 'xxx"),
        ("epochs: " + "x" * 5000, "epochs: 'xxx"),
        ("learning_rate: " + "9" * 400, "learning_rate: a number of about 400 digits"),
    ],
)
def test_files_that_are_no_recipe(recipe: Any, line: str, said: str) -> None:
    path = recipe(line)
    with pytest.raises(UserError, match=re.escape(f"{path}: {said}")) as caught:
        read_recipe(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_a_recipe_that_is_missing_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"missing\.yaml: No such file or directory; use a YAML file of settings, or one of cam",
    ):
        read_recipe(tmp_path / "missing.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"bytes\.yaml: not a YAML file"):
        read_recipe(tmp_path / "bytes.yaml")


def test_numbers_that_nothing_can_count_to_are_refused(recipe: Any) -> None:
    for text in ("1" + "0" * 23, "1e23", "1.0e+23"):
        line = refusal("--config", str(recipe(f"seed: {text}")))
        assert "seed" in line and len(line) < 300
    assert "--seed a number of about 23 digits: must be" in refusal("--seed", "1" + "0" * 23)
    assert "--epochs a number of about 400 digits: must be" in refusal("--epochs", "1" + "0" * 400)
    assert "--timeout inf: must be" in refusal("--timeout", "inf")
    assert "--ignore-index a number of about 30 digits: must" in refusal(
        "--ignore-index", "1" + "0" * 30
    )
    assert "--ignore-index 2147483648: must be" in refusal("--ignore-index", "2147483648")
    assert "seed" in refusal("--seed", "9" * 5000)


def test_recipe_values_have_the_same_limits(recipe: Any) -> None:
    path = str(recipe("epochs: 0"))
    assert refusal("--config", path).startswith("--epochs 0: must be 1 or more; ")
    assert parse_train(["--config", path, "-e", "1"]).optimization.epochs == 1


def test_a_saved_recipe_starts_the_same_run(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    argv = (
        "-e 3 -s 0.25 --class-weights 1 3 --bilinear --precision float32 --nodata nan --list a.csv"
    )
    config = parse_train([*argv.split(), "--stop-after", "5"])
    save_config(config, path)
    again = parse_train(["--config", str(path)])
    assert repr(again.to_dict()) == repr(config.to_dict())  # nan is not equal to itself
    assert again.launch.stop_after is None
    assert list(yaml.safe_load(path.read_text())) == list(config.to_dict())


# -- saved settings ------------------------------------------------------------------------


def test_later_sources_win(recipe: Any) -> None:
    """Default, then checkpoint, then recipe, then command line."""
    saved = {"width": 8, "epochs": 8, "seed": 8, "bilinear": True, "precision": "float32"}
    path = str(recipe("epochs: 9\nseed: 9\n"))
    config = with_saved(
        parse_train(["--config", path, "--seed", "10", "--precision", "auto"]), saved
    )
    assert (config.network.width, config.optimization.epochs) == (8, 9)
    assert config.optimization.seed == 10
    assert config.network.bilinear is True and config.optimization.precision == "auto"
    assert config.optimization.batch_size == 4
    assert config.given == {"config", "epochs", "seed", "precision"}


def test_a_default_that_was_typed_wins_over_the_checkpoint() -> None:
    for argv in (["-e", "10"], ["-e10"], ["--epochs=10"]):
        assert with_saved(parse_train(argv), {"epochs": 3}).optimization.epochs == 10
    assert not with_saved(parse_train(["--no_bilinear"]), {"bilinear": True}).network.bilinear
    assert with_saved(parse_train(["--lr", "0.001"]), {"learning_rate": 1}) == TrainConfig()


def test_a_resumed_run_stays_in_its_folder_and_this_start_s_options_hold() -> None:
    saved = {
        "checkpoints": "a", "exp_name": "b", "load": "c.pt", "stop_after": "3", "resume": "d.pt",
        "given": ["epochs"], "config": "e.yaml", "of_a_later_version": 1,
    }  # fmt: skip
    assert with_saved(parse_train(["--workers", "2"]), saved) == parse_train(["--workers", "2"])


def test_saved_lists_are_values_and_never_flags() -> None:
    saved = {
        "class_names": ["--epochs", "3"], "crop_size": [64, 96], "class_weights": [1, 2.5],
        "list": "pairs.csv", "exp_name": None, "nodata": float("-inf"),
    }  # fmt: skip
    config = with_saved(parse_train([]), saved)
    assert config.data.class_names == ("--epochs", "3") and config.optimization.epochs == 10
    assert config.data.crop_size == (64, 96) and config.data.pairs_file == "pairs.csv"
    assert config.optimization.class_weights == (1.0, 2.5)
    assert config.to_dict() == {**TrainConfig().to_dict(), **saved}


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ({"epochs": "many"}, "epochs: 'many' can't be a value of --epochs"),
        ({"scale": [0.5]}, "scale: [0.5] can't be a value of --scale"),
        ({"class_names": "ab"}, "class_names: 'ab' can't be a value of --class-names"),
        ({"crop_size": [64]}, "crop_size: [64] can't be"),
        (
            {"crop_size": [1, 1, "--checkpoints", "/elsewhere", "--profile"]},
            "crop_size: [1, 1, '--checkpoints', '/elsewhere', '--profile'] can't be a value of",
        ),
        ({"bilinear": "no"}, "bilinear: 'no' can't be"),
        ({"list": 1.5}, "list: 1.5 can't be a value of --list"),
        ({"epochs": 0}, "--epochs 0: must be 1 or more"),
        ({"masks": "a"}, "--images and --masks"),
    ],
)
def test_saved_settings_are_checked(saved: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        with_saved(parse_train([]), saved)


def test_no_file_switches_tracking_on_or_says_where_to_write(tmp_path: Path) -> None:
    saved = {"wandb": True, "checkpoints": "/elsewhere", "exp_name": "x", "load": "y", "epochs": 3}
    config = with_saved(parse_train([]), saved)
    assert config.run == RunConfig() and config.optimization.epochs == 3
    recipe = tmp_path / "r.yaml"
    recipe.write_text("wandb: true")
    assert refusal("--config", str(recipe)) == (f"{recipe}: wandb: use --wandb, or delete the line")
    recipe.write_text("wandb: false")
    assert not parse_train(["--config", str(recipe)]).run.wandb


def test_the_command_line_switches_tracking_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "wandb" or None)
    (tmp_path / "r.yaml").write_text("wandb: true")
    config = parse_train(["--wandb", "--config", str(tmp_path / "r.yaml")])
    assert config.run.wandb and with_saved(config, {"wandb": False}).run.wandb


def test_a_saved_setting_and_a_given_one_that_exclude_each_other() -> None:
    with pytest.raises(UserError, match="--mask-threshold and --classes: use one of them"):
        with_saved(parse_train(["--mask-threshold", "0"]), {"classes": 3})


def test_configuration_of_a_saved_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data can be read where its tracking is not installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = with_saved(TrainConfig(), {"wandb": True, "images": "a", "masks": "b", "seed": 3})
    assert (config.data.images, config.data.masks) == ("a", "b")
    assert config.optimization.seed == 3 and not config.run.wandb


@pytest.mark.parametrize("name", ["images", "list", "palette", "val_masks"])
def test_addresses_in_a_checkpoint_are_not_opened_unasked(name: str) -> None:
    saved = {name: "s3://elsewhere/x"}
    flag = "--" + name.replace("_", "-")
    with pytest.raises(
        UserError, match=rf"{flag}: the run's was 's3://elsewhere/x'; .*give the flag"
    ):
        with_saved(TrainConfig(), saved)
    given = parse_train(
        [flag, "s3://mine/x", *(["--masks", "m"] if name == "images" else [])]
        + (["--val-images", "i"] if name == "val_masks" else [])
    )
    assert with_saved(given, saved) == given  # what is given wins


# -- words ----------------------------------------------------------------------------------

TYPED: dict[Any, Any] = {TrainConfig: parse_train, PredictConfig: parse_predict}
PYTHON = re.compile(r"Error parsing|literal|<class|Got errors|Missing value|instantiated|invalid choice|tuple\[")  # fmt: skip


@pytest.mark.parametrize("wrong", [[], ["wrong"], ["1", "2", "wrong"], ["1.5.", "7"], ["="]])
@pytest.mark.parametrize("kind", TYPED, ids=["train", "predict"])
def test_no_flag_answers_in_words_of_python(kind: Any, wrong: list[str]) -> None:
    """Whatever is typed after it: nothing, text, too many values. One flag of each type is tried."""
    flags = {
        getattr(each.hint, "__origin__", each.hint): n for n, each in settings_of(kind).items()
    }
    assert len(flags) > 7
    for name in {*flags.values()} - {"inputs"}:
        words = [as_flag(name), *wrong] if wrong != ["="] else [f"{as_flag(name)}="]
        inputs = ["a.png"] if kind is PredictConfig else []
        try:
            TYPED[kind]([*inputs, *words])
        except UserError as error:
            said = str(error)
            assert not PYTHON.search(said), said
            assert as_flag(name) in said or "Unrecognized" in said or "inputs" in said, said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--epochs", "-e/--epochs: give a value; see"),
        ("--epochs 1.5", "-e/--epochs 1.5: expected a whole number; see"),
        ("--lr abc", "-l/--lr/--learning-rate abc: expected a number or auto; see"),
        ("--validation 9%", "-v/--validation 9%: expected a number; see"),
        ("--crop-size 5", "--crop-size 5: expected 2 whole numbers; see"),
        ("--class-weights a b", "--class-weights a b: expected numbers; see"),
        ("--device tpu", "--device tpu: expected auto, cpu or cuda; see"),
        ("--save-every=", "--save-every: expected a whole number; see"),
        ("--shares", "--shares: give at least one value"),
        ("--class-names", "--class-names: give at least one value"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(argv: str, said: str) -> None:
    assert refusal(*argv.split()).startswith(said)


@pytest.mark.parametrize("words", [["--model"], ["-m"], ["--reader"], ["--model", "--tta", "d4"]])
def test_a_network_that_a_shell_left_out_is_not_the_newest(words: list[str]) -> None:
    """As of `--model $UNSET`."""
    with pytest.raises(UserError, match=r"^--(model|reader): give at least one value$"):
        parse_predict(["a.png", *words])


def test_a_command_names_what_it_lacks() -> None:
    with pytest.raises(UserError) as one:
        export([])
    assert str(one.value).startswith("give CHECKPOINT: The checkpoint or its run's folder")
    with pytest.raises(UserError) as several:
        import_masks(["a.json"])
    assert str(several.value).startswith("give --images DIR, --output DIR; see")
