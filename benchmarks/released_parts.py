"""Parts of a user's own, as the documentation of version 1.0 describes them: each uses all that it is given."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from torch import nn

from unet_ddp import Predictor
from unet_ddp.data.readers.bands import BandsFile
from unet_ddp.data.readers.base import Header
from unet_ddp.errors import UserError
from unet_ddp.files import write_text
from unet_ddp.prediction.outputs.base import Output


class Tiny(nn.Module):
    stride = 2
    bytes_per_pixel = 400

    def __init__(self, channels, num_classes, width=16, bilinear=False):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.head = nn.ConvTranspose2d(width, num_classes, 2, 2)

    def forward(self, images):  # (N, channels, H, W)
        return self.head(self.encoder(images))  # (N, num_classes, H, W)


class SquaredDice:
    column = "squared_dice"

    def __init__(self, options):
        assert options.loss_weights == (1.0, 1.0) and options.learning_rate > 0

    def sums(self, batch):
        assert batch.logits.shape == batch.log_probabilities.shape == batch.truth.shape
        assert batch.masks.ndim == 3 and len(batch.weights) == batch.logits.shape[1]
        overlap = (batch.probabilities * batch.truth).sum().view(1)
        return {"overlap": overlap, "squares": (batch.probabilities**2).sum().view(1)}

    def value(self, sums, weights):
        whole = sums["squares"] + sums["occurring"].sum()
        return 1 - 2 * sums["overlap"].squeeze() / whole.squeeze() + 0 * weights.sum()


def darker(image, mask, generator):  # (H, W, C), (H, W) class ids
    return (image * generator.uniform(0.9, 1)).astype(image.dtype), mask


class Notes:
    def __init__(self, run):
        self.run, self.steps, self.rows, self.saves = run, 0, [], []
        assert run.settings["epochs"] and list(run.state.network.parameters())

    def step(self, report, done):
        assert report.losses[0].numel() == 1
        self.steps = done

    def epoch(self, row):
        self.rows.append(row["epoch"])
        self.run.log(f"noted {row['squared_dice']:.1f}")
        return False

    def saved(self, path):
        self.saves.append(path.name)

    def close(self, ending):
        facts = [self.run.name, self.steps, self.rows, sorted({*self.saves})]
        facts += [ending.state, ending.exit_status, ending.signal, ending.error]
        (self.run.folder / "notes.json").write_text(json.dumps(facts))


class Rows(Output):
    path = Path("rows.json")
    header, separator, footer = "[", ",", "]\n"

    def __init__(self, config, labels, image_format):
        super().__init__(config, labels, image_format)
        self.rows = {}
        self.facts = [labels.class_names, image_format.channels, image_format.dtype]

    def files(self, image):
        return [image.named("_rows.json")]

    @contextmanager
    def watch(self, image, prediction):
        self.rows[image.index] = 0

        def count(band):
            self.rows[image.index] += band.ids.shape[0]

        yield count

    def write(self, image, prediction):
        write_text(*self.files(image), self.record(image, prediction))

    def record(self, image, prediction):
        facts = [image.name, image.image.name, image.mask.name, *prediction.size]
        return json.dumps([*facts, self.rows.get(image.index), *self.facts])


class XyzFile(BandsFile):
    suffixes = (".xyz",)

    def __init__(self, path):
        super().__init__(path)
        shape = np.fromfile(path, "<u2", 3)  # height, width, channels
        self.pixels = np.fromfile(path, np.uint8, offset=6).reshape(shape)

    @property
    def header(self):
        height, width, channels = self.pixels.shape
        return Header(width, height, channels, "uint8")

    def read_bands(self):
        return self.pixels


def count(argv):
    if len(argv) != 1:
        raise UserError("count: name one checkpoint")
    labels = Predictor.from_checkpoint(argv[0]).labels
    print(f"{labels.num_classes} classes: {', '.join(labels.class_names)}")
    return 0
