"""Classes of a data set: from the values in its masks, and from the user's flags."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import cast

from unet_ddp.config import DataConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.mask_values import MaskValues, refuse_soft
from unet_ddp.data.masks import IGNORE_ID, unpack_colour
from unet_ddp.errors import UserError, shorten
from unet_ddp.files import as_path, refuse_special
from unet_ddp.plugins import find
from unet_ddp.settings import called


def choose_labels(masks: MaskValues, config: DataConfig) -> Labels:
    """Return the classes of the data set; the values must be classes, and agree with the flags."""
    for name in called(config, "label_rules"):
        return cast(Labels, find("label_rules", name)(masks, config))
    if config.binary or config.mask_threshold is not None:
        labels = _threshold(masks, config.mask_threshold or 0, config.ignore_index)
    elif config.palette is not None:
        labels = _match_palette(as_path(config.palette), masks, config)
    else:
        refuse_soft(masks)
        labels = infer_labels(masks, classes=config.classes, ignore=config.ignore_index)
    if config.invert:
        if labels.num_classes != 2:
            raise UserError(f"--invert: for two classes, and there are {labels.num_classes}")
        labels = replace(labels, values=labels.values[::-1])
    names = config.class_names
    if names is None:
        return labels
    if len(names) != labels.num_classes or len(set(names)) != len(names):
        raise UserError(
            f"--class-names: {len(names)} names for {labels.num_classes} classes (mask values "
            f"{masks.show(list(labels.values))}); give one for each, all different"
        )
    return replace(labels, names=tuple(names))


# -- from the values alone -----------------------------------------------------------------


def infer_labels(
    masks: MaskValues, *, classes: int | None = None, ignore: int | None = None
) -> Labels:
    """Return the classes of masks with hard edges: each value is a class, in rising order.

    If all values are below `classes`, they are class ids: one that occurs in no mask keeps its id.
    """
    values = masks.values
    if ignore is not None and ignore not in values and (masks.rgb or classes is None):
        raise UserError(
            f"--ignore-index {masks.show([ignore])}: occurs in no mask; the values are "
            f"{masks.show(values)}"
        )
    kept = [value for value in values if value != ignore]
    _refuse_impossible(kept, masks)
    if classes is None and len(kept) < 2:
        raise UserError(
            f"all masks contain only the value {masks.show(values)}: there is nothing to segment; "
            "check the masks, or use --classes"
        )
    if classes is not None and not masks.rgb and max(kept, default=0) < classes:
        if ignore is not None and ignore < classes:
            raise UserError(
                f"--classes {classes} counts the value {ignore} that --ignore-index names: use "
                f"--classes {classes - 1}, or leave it out"
            )
        kept = list(range(classes))
    if len(kept) != (classes or len(kept)):
        rarest = min(values, key=lambda value: masks.counts[value])
        raise UserError(
            f"--classes {classes}: the masks contain {len(kept)} values ({masks.show(values)}); "
            f"{masks.show([rarest])} has {masks.counts[rarest]} pixel(s), e.g. in "
            f"{masks.examples[rarest]}; fix the masks, leave --classes out for one class per value, "
            "or name one of them with --ignore-index"
        )
    return Labels(tuple(kept), masks.rgb, ignore, masks.palette)


def _refuse_impossible(values: list[int], masks: MaskValues) -> None:
    """Raise a UserError for a value that no mask of a prediction could hold, or for too many."""
    outside = [value for value in values if not 0 <= value <= (0xFFFFFF if masks.rgb else 65535)]
    if outside:
        raise UserError(
            f"mask value {outside[0]}, e.g. in {masks.examples[outside[0]]}: classes are values from 0 to "
            "65535; fix the masks, name the value with --ignore-index, or use --binary"
        )
    if len(values) > IGNORE_ID:
        raise UserError(
            f"the masks contain {len(values)} different values ({masks.show(masks.values)}); classes "
            "need one value each, at most 255"
        )


def _threshold(masks: MaskValues, threshold: int, ignore: int | None) -> Labels:
    """Return two classes, above the threshold and not; both must occur."""
    values = [value for value in masks.values if value != ignore]
    bright = [max(unpack_colour(value)) if masks.rgb else value for value in values]
    if bright and (max(bright) <= threshold or min(bright) > threshold):
        side = "above" if min(bright) > threshold else "at or below"
        raise UserError(
            f"--mask-threshold {threshold}: all mask values ({min(bright)} to {max(bright)}) are "
            f"{side} it: there is nothing to segment"
        )
    white = 0xFFFFFF if masks.rgb else 255
    return Labels((0, white), masks.rgb, ignore, threshold=threshold)


# -- palette files -------------------------------------------------------------------------


def read_palette(path: Path) -> tuple[dict[str, int], bool]:
    """Read the values of classes by name from a CSV file, and whether they are colours.

    Its lines are name,value or name,#rrggbb or name,red,green,blue; the first may be a header.
    """
    try:
        refuse_special(path)
        text = path.read_text(encoding="utf-8-sig")
        rows = [
            (line, [cell.strip() for cell in row])
            for line, row in enumerate(csv.reader(text.splitlines()), start=1)
            if any(row)
        ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        reason = f"not a CSV file ({error})" if isinstance(error, csv.Error) else reason
        raise UserError(f"--palette {path}: {reason}; use a CSV file") from None
    if rows and not any(re.search(r"[\d#]", cell) for cell in rows[0][1][1:]):
        del rows[0]
    values: dict[str, int] = {}
    kinds = set()
    for line, (name, *cells) in rows:
        value, is_colour = _parse_value(cells) if name else (None, False)
        if value is None:
            raise UserError(
                f"--palette {path}: line {line} is {shorten(','.join([name, *cells]))}; a line is "
                "name,value or name,#rrggbb or name,red,green,blue"
            )
        if name in values or value in values.values():
            raise UserError(f"--palette {path}: line {line} has the name or value of another class")
        values[name] = value
        kinds.add(is_colour)
    if len(kinds) != 1 or len(values) < 2:
        raise UserError(f"--palette {path}: values and colours mixed, or fewer than two classes")
    return values, kinds.pop()


def _parse_value(cells: list[str]) -> tuple[int | None, bool]:
    """Return value, red,green,blue or #rrggbb as a number, None for others, and if it is a colour."""
    numbers = [int(cell) for cell in cells if re.fullmatch("[0-9]{1,5}", cell)]
    if len(cells) == len(numbers) == 3 and max(numbers) < 256:
        red, green, blue = numbers
        return red << 16 | green << 8 | blue, True
    if len(cells) == 1 and re.fullmatch(r"#[0-9a-fA-F]{6}", cells[0]):
        return int(cells[0][1:], 16), True
    return numbers[0] if len(cells) == len(numbers) == 1 and numbers[0] < 65536 else None, False


def _match_palette(path: Path, masks: MaskValues, config: DataConfig) -> Labels:
    """Return the classes of a palette file in its order; one named ignore is ignored."""
    ignore = config.ignore_index
    values, is_colour = read_palette(path)
    if masks.rgb and not is_colour:
        raise UserError(f"--palette {path}: names values, and the masks are colour images")
    if is_colour and not masks.rgb:
        values = _as_indices(values, masks, path)
    kept = {n: v for n, v in values.items() if n.lower() != "ignore" and v != ignore}
    if ignore is None:
        ignore = next((value for name, value in values.items() if name not in kept), None)
    if len(kept) > IGNORE_ID:
        raise UserError(f"--palette {path}: {len(kept)} classes; at most {IGNORE_ID} are possible")
    if config.classes not in (None, len(kept)):
        raise UserError(f"--classes {config.classes}: {path} names {len(kept)}")
    missing = [value for value in masks.values if value not in (*kept.values(), ignore)]
    if missing:
        raise UserError(
            f"--palette {path}: the masks also contain {masks.show(missing)} in "
            f"{sum(masks.counts[value] for value in missing)} pixel(s), e.g. in "
            f"{masks.examples[missing[0]]}; add a line for each (named ignore to leave it out), or "
            "fix the masks"
        )
    return Labels(tuple(kept.values()), masks.rgb, ignore, masks.palette, tuple(kept))


def _as_indices(values: dict[str, int], masks: MaskValues, path: Path) -> dict[str, int]:
    """Return the indices that colours have in palette masks."""
    if masks.palette is None:
        raise UserError(
            f"--palette {path}: names colours, and the masks are grey; use name,value lines"
        )
    colours = [red << 16 | green << 8 | blue for red, green, blue in masks.palette]
    lost = [name for name, colour in values.items() if colour not in colours]
    if lost:
        raise UserError(f"--palette {path}: {lost[0]}'s colour is not in the masks' palettes")
    return {name: colours.index(colour) for name, colour in values.items()}
