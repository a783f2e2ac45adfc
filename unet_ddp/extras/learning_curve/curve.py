"""The trainings of a learning curve, and their scores."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch

from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.samplers import TrainingSampler
from unet_ddp.distributed.device import pick_device
from unet_ddp.distributed.world import World
from unet_ddp.errors import Limit, RunError, UserError, from_plain, print_lines
from unet_ddp.evaluation.dataset import EvaluationDataset
from unet_ddp.evaluation.scoring import score_pairs
from unet_ddp.extras.learning_curve.subsets import (
    choose_sizes,
    draw_groups,
    group_training,
    write_list,
)
from unet_ddp.extras.tune.trainings import (
    check_settings,
    last_words,
    start_training,
    wait_for_training,
    was_stopped,
)
from unet_ddp.files import write_errors, write_text
from unet_ddp.files.contents import read_json
from unet_ddp.plugins import is_own, names_object
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.runs.writers import describe_time
from unet_ddp.settings import Kind, as_flag, flag, names_of, values_of

# A list takes their place.
_PLACES = "images", "masks", "val_images", "val_masks", "mask_suffix", "group_pattern", "fold"


@dataclass(frozen=True)
class CurveConfig(TrainConfig):
    """Forecast the score with twice the labels, from trainings on 1/8, 1/4, 1/2 and all of them.

    python -m unet_ddp learning-curve --images DIR --masks DIR --epochs 20 --validation 25

    Takes train.py's flags of a whole run, for all trainings. Fewer images take as many steps as all of them do in
    --epochs. Killed, it is continued by the same command. Its folder is that of --checkpoints and --exp-name
    (default: checkpoints/learning-curve).
    """

    unused = names_of(TrainConfig, Kind.EXTENT) | {"patience"}
    sizes: Annotated[tuple[int, ...], flag("N ..."), Limit(at_least=1)] = ()
    """Numbers of groups of images to train on, three or more (default: 1/8, 1/4, 1/2 and all)."""
    repeats: Annotated[int, flag("N"), Limit(1, 100)] = 1
    """Trainings of each size, each on other groups and with another seed; more can be added later."""

    def check_steps(self) -> None:
        """Raise a UserError if trainings would take different numbers of steps."""
        values, defaults = values_of(self), values_of(CurveConfig())
        for name in sorted(self.unused):
            if values[name] != defaults[name]:
                raise UserError(f"{as_flag(name)}: all trainings take equal steps; leave it out")
        if self.optimization.batch_size == "auto":
            raise UserError("--batch-size auto: all trainings take equal steps; use a number")


@dataclass(frozen=True)
class Point:
    """A training and its score."""

    images: int
    groups: int
    repeat: int
    steps: int
    dice: float


class Curve:
    """The trainings of a curve; learning-curve.json has their scores, after each of them."""

    def __init__(self, config: CurveConfig, data: PreparedData, folder: Path) -> None:
        self.config, self.data, self.folder = config, data, folder
        split = data.split
        if split.training.scanned is not None:
            raise UserError(f"--images {config.data.images}: is a pack; use the files it is of")
        if names_object(config.data.images):
            raise UserError(f"--images {config.data.images}: is no folder; save the items as files")
        if config.data.window is not None:
            raise UserError("--window: learning-curve trains on whole images; leave it out")
        if not split.validation:
            raise UserError("--validation: no images to score; use --validation 25")
        self.groups = group_training(data)
        self.sizes = choose_sizes(self.groups, config.sizes)
        self.steps = config.optimization.epochs * self._count_steps(split.training)
        for repeat in range(config.repeats):
            self._count_steps(self.draw(self.sizes[0], repeat))
        self.points: dict[str, Point] = {}
        self._about = {**config.to_dict(), "nproc": config.launch.nproc}
        self._file = folder / "learning-curve.json"

    def open(self) -> None:
        """Read the scores of an earlier start, which must be of the same curve.

        Raises:
            UserError: it is of another one, or the folder has something else.
        """
        if not self._file.exists():
            for other in sorted(self.folder.glob("[!.]*")):
                raise UserError(f"{other}: of no learning curve; use another --exp-name")
            self._save()
        try:
            saved = read_json(self._file, "a learning curve")
            before, names = dict(saved["about"]), saved["split"]
            for name, point in saved["points"].items():
                self.points[name] = from_plain(Point, point)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"{self._file}: corrupt, or of no learning curve; use another --exp-name"
            ) from None
        check_settings(self.folder, before, self._about, "curve")
        if names != self.data.split.fingerprint:
            raise UserError(f"{self.folder}: its images were others; use another --exp-name")

    def _save(self) -> None:
        points = {name: asdict(point) for name, point in self.points.items()}
        content = {"about": self._about, "split": self.data.split.fingerprint, "points": points}
        with write_errors(self._file):
            write_text(self._file, json.dumps(content, indent=1))

    def _count_steps(self, pairs: Sequence[Pair]) -> int:
        """Return the steps of an epoch; a UserError if the pairs are fewer than one step takes."""
        options, size = self.config.optimization, self.config.launch.nproc
        per_step = int(options.batch_size) * options.accumulate
        if options.images_per_step:
            per_step = max(1, options.images_per_step // size)  # the training says what is wrong
        steps = options.epoch_steps
        return TrainingSampler(len(pairs), per_step, rank=0, size=size, seed=0, steps=steps).steps

    def draw(self, size: int, repeat: int) -> list[Pair]:
        """Return the pairs of a training on `size` groups."""
        return draw_groups(self.groups, size, self.config.optimization.seed + repeat)

    def measure(self, size: int, repeat: int) -> None:
        """Train on `size` groups, from a checkpoint if there is one, and score; or keep a score.

        Raises:
            UserError: the training ends with a mistake.
            RunError: it fails.
        """
        pairs = self.draw(size, repeat)
        name = f"images_{len(pairs):05d}_repeat_{repeat + 1}"
        if name in self.points:
            return
        began = time.monotonic()
        place = self.folder / name
        wait_for_training(place)
        write_list(Path(f"{place}.csv"), self.data, pairs)
        own = {
            **dict.fromkeys(_PLACES),
            "list": f"{place}.csv",
            "seed": self.config.optimization.seed + repeat,
            "epochs": -(-self.steps // self._count_steps(pairs)),
            "stop_after": str(self.steps),
        }
        status = start_training(place, self.config, {}, **own)
        if was_stopped(status):
            raise KeyboardInterrupt
        if status:
            said = last_words(place, self.config).removeprefix("error: ")
            kind = UserError if status == 2 else RunError
            raise kind(f"{said} ({place}.log)")
        dice = score(place / "last.pt", self.config, self.data.split.validation)
        if math.isnan(dice):
            raise UserError("--validation: no validation image has a class to score; use more")
        self.points[name] = Point(len(pairs), size, repeat + 1, self.steps, dice)
        self._save()
        took = describe_time(time.monotonic() - began)
        print_lines(f"{name}: Dice {dice:.4f} ({took})")


def score(source: Path, config: TrainConfig, pairs: Pairs) -> float:
    """Return the Dice of a checkpoint on `pairs` at the scale of its network, as training's validation has it.

    With two classes it is at the best threshold, which training finds, too.
    """
    device = pick_device(config.launch.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # their number decides the last bits of a convolution
    model = config.network.model
    network = model if is_own("networks", model) else None
    predictor = Predictor.from_checkpoint(source, device=device, fold=False, network=network)
    resize_masks = config.data.resize_masks
    dataset = EvaluationDataset(pairs, predictor, full_size=False, resize_masks=resize_masks)
    world = World(device=device)
    workers = config.launch.workers
    evaluation = score_pairs(predictor, dataset, world, threshold=None, workers=workers)
    del predictor, dataset
    torch.cuda.empty_cache()  # the next training needs it
    dice, curve = evaluation.scores.dice_of_true, evaluation.curve
    return dice if curve is None or math.isnan(dice) else curve.best_dice
