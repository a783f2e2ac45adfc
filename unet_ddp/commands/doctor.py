"""``python -m unet_ddp doctor``: what a data set is, what is wrong with it, what a run will cost.

The inspection is that of train.py, which stops at the first problem where the doctor lists all.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unet_ddp.config import DoctorConfig, parse_doctor
from unet_ddp.data.checks.check import Inspection, check_dataset
from unet_ddp.data.checks.prepare import check_classes, crop_size
from unet_ddp.data.checks.summary import pixels_of_classes
from unet_ddp.data.formats.resize import scaled_size
from unet_ddp.data.labels import Labels
from unet_ddp.data.samplers import TrainingSampler
from unet_ddp.data.splits import largest_groups
from unet_ddp.distributed.device import pick_device, usable_cores
from unet_ddp.errors import UserError, one_line
from unet_ddp.runs.tracking import show_files
from unet_ddp.training.cost import Cost, estimate_cost

_FIGURE = 12  # samples
_MOST = 20  # lines of one kind in the terminal; JSON has all


def doctor(words: Sequence[str]) -> int:
    """Examine the data set that `words` name; 0 sound, 1 warnings with --strict, 2 unfit."""
    config = parse_doctor(words)
    figure = Path(config.doctor.figure) if config.doctor.figure else None
    if figure is not None and (figure.exists() or figure.suffix.lower() != ".png"):
        raise UserError(f"--figure {figure}: name a PNG file that is not there yet")
    data = check_dataset(
        config.data,
        seed=config.optimization.seed,
        progress=show_files,
        workers=usable_cores(),
        skip_bad=config.launch.skip_bad_files,
        everything=True,
    )
    if data.labels is not None:
        weights, labels = config.optimization.class_weights, data.labels
        data.attempt(lambda: check_classes(labels, weights))
    if data.split is not None:
        count = len(data.split.training)
        data.attempt(lambda: check_batch(count, config))
    findings = gather(data, config)
    if config.doctor.json:
        print(json.dumps(findings, indent=1))
    else:
        print("\n".join(map(one_line, tell(findings))))
    if figure is not None and not data.problems:
        draw(data, config, figure)
        if not config.doctor.json:
            print(f"look at {figure}: samples as the network sees them, plain and with their masks")
    if data.problems:
        return 2
    return 1 if data.warnings and config.doctor.strict else 0


def check_batch(count: int, config: DoctorConfig) -> None:
    """Refuse `count` training images of which one process could not fill a single step."""
    options = config.optimization
    if options.batch_size != "auto":
        per_step = options.batch_size * options.accumulate
        TrainingSampler(count, per_step, rank=0, size=1, seed=options.seed)


# -- what was found, as plain values -------------------------------------------------------


def gather(data: Inspection, config: DoctorConfig) -> dict[str, Any]:
    """All that was found, as JSON can hold it."""
    verdict = "unfit" if data.problems else "warnings" if data.warnings else "sound"
    findings: dict[str, Any] = {
        "verdict": verdict,
        "problems": data.problems,
        "warnings": data.warnings,
        "notes": data.notes,
        "orphan_masks": [str(path) for path in data.matches.orphans] if data.matches else [],
    }
    found = data.found
    if found is None or not found.pairs:
        return findings
    sizes = Counter(found.sizes)
    findings["images"] = {
        "count": len(found.pairs),
        "sizes": [[width, height, n] for (height, width), n in sizes.most_common()],
        "formats": _counted(pair.image.suffix.lower() for pair in found.pairs),
        "channels": _counted(str(image.channels) for image in found.images),
        "types": _counted(image.dtype for image in found.images),
        "with_alpha": sum(image.has_alpha for image in found.images),
    }
    values = found.mask_values()
    kind = "colour" if values.rgb else "palette" if values.palette else "grey"
    findings["masks"] = {
        "formats": _counted(pair.mask.suffix.lower() for pair in found.pairs),
        "kind": kind,
        "values": _shares(data, values.rgb, values.counts),
    }
    if data.labels is not None and data.split is not None and not data.problems:
        findings["classes"] = _classes(data, data.labels)
    if data.split is not None:
        findings["split"] = {
            "how": data.split.how,
            "training": len(data.split.training),
            "validation": len(data.split.validation),
            "groups": largest_groups(data.groups.values(), most=len(data.groups)),
        }
    findings["copies"] = [[str(one.image), str(other.image)] for one, other in data.copies]
    if not data.problems:
        findings["cost"] = _cost(data, config)
    return findings


def _counted(kinds: Any) -> dict[str, int]:
    return dict(Counter(kinds).most_common())


def _shares(data: Inspection, rgb: bool, counts: Any) -> list[dict[str, Any]]:
    """Every mask value with its share of the pixels, the commonest first."""
    total = sum(counts.values()) or 1
    show = Labels((), rgb).show
    return [
        {"value": show(value), "share": count / total}
        for value, count in sorted(counts.items(), key=lambda item: -item[1])
    ]


def _classes(data: Inspection, labels: Labels) -> list[dict[str, Any]]:
    """Every class with its share of the pixels on both sides, and a weight that would balance them.

    The weight is the median frequency over the class's own, a frequency being its share of the
    pixels (Eigen & Fergus, "Predicting depth, surface normals and semantic labels", 2015).
    """
    assert data.found is not None and data.split is not None
    training = pixels_of_classes(data.found, labels, data.split.training)
    validation = pixels_of_classes(data.found, labels, data.split.validation)
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


def _cost(data: Inspection, config: DoctorConfig) -> dict[str, Any]:
    """What a step and an epoch will take, from a trial."""
    assert data.found is not None and data.format is not None
    assert data.labels is not None and data.split is not None
    side = crop_size(config.data, data.found) or scaled_size(
        *data.found.sizes[0], config.data.scale
    )
    cost: Cost = estimate_cost(
        config,
        channels=data.format.channels,
        num_classes=data.labels.num_classes,
        size=side,
        device=pick_device(config.launch.device),
    )
    steps = len(data.split.training) // (
        config.optimization.images_at_once * config.optimization.accumulate
    )
    return {
        "parameters": cost.parameters,
        "height": side[0],
        "width": side[1],
        "batch_size": config.optimization.images_at_once,
        "bytes": cost.bytes,
        "seconds_per_step": cost.seconds,
        "seconds_per_epoch": cost.seconds * config.optimization.accumulate * steps,
        "device": cost.device,
    }


# -- for people ----------------------------------------------------------------------------


def tell(findings: dict[str, Any]) -> list[str]:
    """What was found, as lines for a terminal."""
    lines = list(findings["notes"])
    if "images" in findings:
        lines += _tell_images(findings)
    if "classes" in findings:
        rows = [
            [
                str(c["id"]), c["name"], c["value"], f"{c['training_share']:.2%}",
                f"{c['validation_share']:.2%}", f"{c['suggested_weight']:g}",
            ]
            for c in findings["classes"]
        ]  # fmt: skip
        heads = ["class", "name", "mask value", "of training", "of validation", "balancing weight"]
        lines += ["", *table(heads, rows)]
    if "split" in findings:
        groups = findings["split"]["groups"]
        if len(groups) < findings["split"]["training"] + findings["split"]["validation"]:
            shown = ", ".join(f"{name} ({n})" for name, n in groups[:8])
            lines.append(f"groups: {shown}{', …' if len(groups) > 8 else ''}")
    if "cost" in findings:
        lines.append(_tell_cost(findings["cost"]))
    lines.append("")
    for kind, word in (("problems", "error"), ("warnings", "warning")):
        many = findings[kind]
        lines += [f"{word}: {line}" for line in many[:_MOST]]
        if len(many) > _MOST:
            lines.append(f"{word}: and {len(many) - _MOST} more; --json lists all")
    verdicts = {
        "sound": "sound: train on it",
        "warnings": f"can be trained on; {len(findings['warnings'])} warning(s)",
        "unfit": f"can't be trained on: {len(findings['problems'])} problem(s)",
    }
    return [*lines, verdicts[findings["verdict"]]]


def _tell_images(findings: dict[str, Any]) -> list[str]:
    images, masks = findings["images"], findings["masks"]

    def listed(kinds: dict[str, int]) -> str:
        return ", ".join(f"{n} {kind}" for kind, n in list(kinds.items())[:6])

    sizes = ", ".join(f"{n} of {width}x{height}" for width, height, n in images["sizes"][:6])
    more = f" and {len(images['sizes']) - 6} sizes more" if len(images["sizes"]) > 6 else ""
    values = ", ".join(f"{v['value']} ({v['share']:.2%})" for v in masks["values"][:12])
    others = f" and {len(masks['values']) - 12} more" if len(masks["values"]) > 12 else ""
    return [
        f"images: {listed(images['formats'])}; {sizes}{more}",
        f"masks: {listed(masks['formats'])}; {masks['kind']}, values {values}{others}",
    ]


def _tell_cost(cost: dict[str, Any]) -> str:
    return (
        f"cost: {cost['parameters'] / 1e6:.1f} million parameters; a batch of {cost['batch_size']} "
        f"of {cost['width']}x{cost['height']} takes about {cost['bytes'] / 1e9:.2g} GB and "
        f"{cost['seconds_per_step']:.2g} s on {cost['device']}, an epoch about "
        f"{duration(cost['seconds_per_epoch'])} on one process (from a trial on smaller images)"
    )


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    """Columns that line up."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [heads, *rows]
    ]


def draw(data: Inspection, config: DoctorConfig, path: Path) -> None:
    """A picture of training samples after augmentation.

    Raises:
        UserError: it can't be written, or a sample can't be read.
    """
    from unet_ddp.data.augmentation import Augmentation
    from unet_ddp.data.dataset import Sample, SegmentationDataset
    from unet_ddp.data.drawing import draw_grid

    assert data.split is not None and data.found is not None
    assert data.labels is not None and data.format is not None
    training = data.split.training
    chosen = training[:: max(1, len(training) // _FIGURE)][:_FIGURE]
    crop = crop_size(config.data, data.found)
    dataset = SegmentationDataset(
        chosen,
        data.labels,
        data.format,
        scale=config.data.scale,
        augmentation=Augmentation.for_images(
            data.format, config.data.augmentation, crop, seed=config.optimization.seed
        ),
        resize_masks=config.data.resize_masks,
    )
    samples = []
    for number in range(len(chosen)):
        sample = dataset[0, number]
        if isinstance(sample, UserError):
            raise sample
        assert isinstance(sample, Sample)
        samples.append((sample.image.numpy(), sample.mask.numpy()))
    try:
        draw_grid(samples, data.labels, path, columns=3)
    except OSError as error:
        raise UserError(f"--figure {path}: {error.strerror or error}") from None
