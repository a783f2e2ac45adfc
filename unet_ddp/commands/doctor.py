"""``python -m unet_ddp doctor``: describe a data set, and list what is wrong with it.

The check is that of train.py, which stops at the first problem where the doctor lists all.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from unet_ddp.cli import parse_run
from unet_ddp.config import TrainConfig, flag
from unet_ddp.data.checks.check import CheckedData, check_classes, check_dataset
from unet_ddp.data.checks.rules import crop_size
from unet_ddp.data.checks.summary import Report, class_pixels
from unet_ddp.data.labels import Labels
from unet_ddp.data.samplers import TrainingSampler
from unet_ddp.errors import UserError, one_line
from unet_ddp.files import write_errors

_SAMPLES = 12  # in the figure
_MOST = 20  # lines of one kind in the terminal; JSON has all


@dataclass(frozen=True)
class DoctorOptions:
    """What the doctor does with its findings."""

    strict: bool = False
    """Exit with status 1 if there are warnings."""
    json: bool = False
    """Print the findings as JSON."""
    figure: Annotated[str | None, flag("FILE")] = None
    """Draw a dozen samples into this PNG file, as the network sees them, plain and with their masks."""


@dataclass(frozen=True)
class DoctorConfig(TrainConfig):
    """Check a data set before training on it.

    Takes the flags of train.py. Exit status 0: ok; 2: not fit to train on.
    """

    doctor: DoctorOptions = field(default_factory=DoctorOptions)


def main(argv: Sequence[str]) -> int:
    """Check the data set that `argv` names; return 0 if ok, 1 if --strict and warnings, 2 if unfit."""
    config = parse_run(DoctorConfig, argv, prog="python -m unet_ddp doctor")
    figure = Path(config.doctor.figure) if config.doctor.figure else None
    if figure is not None and (figure.exists() or figure.suffix.lower() != ".png"):
        raise UserError(f"--figure {figure}: must be a new PNG file")
    report = Report(collects=True)
    data = check_dataset(
        config.data,
        report,
        seed=config.optimization.seed,
        skip_bad=config.launch.skip_bad_files,
    )
    if data is not None:
        report.attempt(lambda: _check_weights(data, config))
        report.attempt(lambda: _check_batch(data, config))
    findings = collect_findings(report, data)
    if config.doctor.json:
        print(json.dumps(findings, indent=1))
    else:
        print("\n".join(map(one_line, format_findings(findings))))
    if report.problems:
        return 2
    if data is not None and figure is not None:
        draw_figure(data, config, figure)
        if not config.doctor.json:
            print(f"{figure}: samples as the network sees them, plain and with their masks")
    return 1 if report.warnings and config.doctor.strict else 0


def _check_weights(data: CheckedData, config: DoctorConfig) -> None:
    if data.labels is not None:
        check_classes(data.labels, config.optimization.class_weights)


def _check_batch(data: CheckedData, config: DoctorConfig) -> None:
    """Raise a UserError if the images do not fill a single step of one process."""
    options = config.optimization
    if data.split is not None and options.batch_size != "auto":
        per_step = options.batch_size * options.accumulate
        TrainingSampler(len(data.split.training), per_step, rank=0, size=1, seed=options.seed)


# -- findings as plain values ---------------------------------------------------------------


def collect_findings(report: Report, data: CheckedData | None) -> dict[str, Any]:
    """Return all findings as plain values for JSON."""
    findings: dict[str, Any] = {
        "verdict": "unfit" if report.problems else "warnings" if report.warnings else "ok",
        "problems": report.problems,
        "warnings": report.warnings,
        "notes": report.notes,
        "orphan_masks": [str(path) for path in report.orphans],
    }
    if data is None:
        return findings
    pairs = data.scan.pairs
    headers = [image.header for _, image, _ in pairs]
    findings["images"] = {
        "count": len(pairs),
        "sizes": [
            [width, height, n] for (height, width), n in Counter(data.scan.sizes).most_common()
        ],
        "formats": _count(pair.image.suffix.lower() for pair, _, _ in pairs),
        "channels": _count(str(header.channels) for header in headers),
        "types": _count(header.dtype for header in headers),
        "with_alpha": sum(header.has_alpha for header in headers),
    }
    findings["masks"] = _collect_masks(data)
    if not report.problems:
        findings["classes"] = _collect_classes(data)
    if data.split is not None:
        findings["split"] = {
            "how": data.split.how,
            "training": len(data.split.training),
            "validation": len(data.split.validation),
            "groups": Counter(data.groups.values()).most_common(),
        }
    findings["copies"] = [[str(one.image), str(other.image)] for one, other in data.copies]
    return findings


def _collect_masks(data: CheckedData) -> dict[str, Any]:
    """Return the masks' formats and values, the most frequent value first."""
    values, show = data.values, Labels((), data.values.rgb).show
    total = sum(values.counts.values()) or 1
    return {
        "formats": _count(pair.mask.suffix.lower() for pair, _, _ in data.scan.pairs),
        "kind": "colour" if values.rgb else "palette" if values.palette else "grey",
        "values": [
            {"value": show(value), "share": count / total}
            for value, count in sorted(values.counts.items(), key=lambda item: -item[1])
        ],
    }


def _count(kinds: Iterable[str]) -> dict[str, int]:
    return dict(Counter(kinds).most_common())


def _collect_classes(data: CheckedData) -> list[dict[str, Any]]:
    """Return each class with its share of the pixels on both sides and a balancing weight.

    The weight is the median frequency over the class's own, a frequency being its share of the
    pixels (Eigen & Fergus, "Predicting depth, surface normals and semantic labels", 2015).
    """
    labels, split = data.labels, data.split
    assert labels is not None and split is not None
    training = class_pixels(data.scan, labels, split.training)
    validation = class_pixels(data.scan, labels, split.validation)
    shares = [n / (sum(training) or 1) for n in training]
    median = statistics.median([share for share in shares if share] or [1.0])
    return [
        {
            "id": k,
            "name": labels.class_names[k],
            "value": labels.show(labels.values[k]),
            "training_share": shares[k],
            "validation_share": validation[k] / (sum(validation) or 1),
            "suggested_weight": round(median / shares[k], 3) if shares[k] else 0.0,
        }
        for k in range(labels.num_classes)
    ]


# -- for people ----------------------------------------------------------------------------


def format_findings(findings: dict[str, Any]) -> list[str]:
    """Return the findings as lines for a terminal."""
    lines = list(findings["notes"])
    if "images" in findings:
        lines += _format_images(findings["images"], findings["masks"])
    if "classes" in findings:
        lines += ["", *_format_classes(findings["classes"])]
    if "split" in findings:
        split = findings["split"]
        if len(split["groups"]) < split["training"] + split["validation"]:
            lines.append("groups: " + _join([f"{name} ({n})" for name, n in split["groups"]], 8))
    lines.append("")
    for kind, word in (("problems", "error"), ("warnings", "warning")):
        found = findings[kind]
        lines += [f"{word}: {line}" for line in found[:_MOST]]
        if len(found) > _MOST:
            lines.append(f"{word}: and {len(found) - _MOST} more; --json lists all")
    verdicts = {
        "ok": "ok: ready to train",
        "warnings": f"ready to train, with {len(findings['warnings'])} warning(s)",
        "unfit": f"unfit to train: {len(findings['problems'])} problem(s)",
    }
    return [*lines, verdicts[findings["verdict"]]]


def _format_images(images: dict[str, Any], masks: dict[str, Any]) -> list[str]:
    formats = [
        _join([f"{n} {kind}" for kind, n in x["formats"].items()], 6) for x in (images, masks)
    ]
    sizes = _join([f"{n} of {width}x{height}" for width, height, n in images["sizes"]], 6)
    values = _join([f"{v['value']} ({v['share']:.2%})" for v in masks["values"]], 12)
    return [
        f"images: {formats[0]}; {sizes}",
        f"masks: {formats[1]}; {masks['kind']}, values {values}",
    ]


def _join(items: list[str], most: int) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def _format_classes(classes: list[dict[str, Any]]) -> list[str]:
    """Return a table of the classes, its columns aligned."""
    rows = [
        ["class", "name", "mask value", "of training", "of validation", "balancing weight"],
        *(
            [
                str(c["id"]), c["name"], c["value"], f"{c['training_share']:.2%}",
                f"{c['validation_share']:.2%}", f"{c['suggested_weight']:g}",
            ]
            for c in classes
        ),
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def draw_figure(data: CheckedData, config: DoctorConfig, path: Path) -> None:
    """Draw training samples after augmentation.

    Raises:
        UserError: the file can't be written, or a sample can't be read.
    """
    from unet_ddp.data.augmentation import Augmentation
    from unet_ddp.data.dataset import Sample, SegmentationDataset
    from unet_ddp.data.drawing import draw_grid

    assert data.labels is not None and data.split is not None
    training = data.split.training
    chosen = training[:: max(1, len(training) // _SAMPLES)][:_SAMPLES]
    dataset = SegmentationDataset(
        chosen,
        data.labels,
        data.format,
        scale=config.data.scale,
        augmentation=Augmentation.for_images(
            data.format,
            config.data.augmentation,
            crop_size(config.data, data.scan),
            seed=config.optimization.seed,
        ),
        resize_masks=config.data.resize_masks,
    )
    samples = []
    for index in range(len(chosen)):
        sample = dataset[0, index]
        if isinstance(sample, UserError):
            raise sample
        assert isinstance(sample, Sample)
        samples.append((sample.image.numpy(), sample.mask.numpy()))
    with write_errors(path):
        draw_grid(samples, data.labels, path, columns=3)
