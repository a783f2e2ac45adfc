"""Which classes there are: from the values in the masks, and from what the user says of them."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unet_ddp.config import DataConfig
from unet_ddp.data.labels import IGNORE_ID, Colour, Labels
from unet_ddp.errors import UserError

_SOFT = 64  # more grey values than this are no classes
_CLUSTERS = 0.9  # share of the pixels near black or near white in soft masks of two classes


@dataclass(frozen=True)
class MaskValues:
    """What the masks hold."""

    counts: Mapping[int, int]
    """Pixels of every value; colours as 0xRRGGBB."""
    rgb: bool = False
    palette: tuple[Colour, ...] | None = None
    """Colours of the indices, where all masks are palette files with the same."""
    lossy: str | None = None
    """A mask with lossy compression, if there is one."""
    where: Mapping[int, str] = field(default_factory=dict)
    """A file that each value is in."""

    def rarest(self) -> str:
        """The rarest value and where it is, in words; empty where that is not known."""
        value = min(self.counts, key=lambda value: self.counts[value], default=None)
        if value is None or value not in self.where:
            return ""
        shown = Labels((), self.rgb).show(value)
        return f"; {shown} is in {self.counts[value]} pixel(s), as of {self.where[value]}"

    @property
    def values(self) -> list[int]:
        return sorted(self.counts)


@dataclass(frozen=True)
class NamedClass:
    """A line of a palette file."""

    name: str
    value: int
    is_colour: bool


def choose_labels(masks: MaskValues, config: DataConfig) -> Labels:
    """The classes of the data set.

    Raises:
        UserError: the values are no classes, or contradict what the flags say.
    """
    if config.binary or config.mask_threshold is not None:
        threshold = config.mask_threshold if config.mask_threshold is not None else 0
        two = (0, 0xFFFFFF if masks.rgb else 255)
        labels = Labels(two, masks.rgb, config.ignore_index, threshold=threshold)
        _check_two(masks, labels)
    elif config.palette is not None:
        labels = _from_palette(read_palette(Path(config.palette)), masks, config)
    else:
        _refuse_soft(masks)
        labels = infer_labels(
            masks.values,
            rgb=masks.rgb,
            palette=masks.palette,
            classes=config.classes,
            ignore=config.ignore_index,
            rarest=masks.rarest(),
        )
    if config.invert:
        if labels.num_classes != 2:
            raise UserError(f"--invert: for two classes, and there are {labels.num_classes}")
        labels = replace(labels, values=labels.values[::-1])
    return _named(labels, config.class_names)


def _named(labels: Labels, names: Sequence[str] | None) -> Labels:
    if names is None:
        return labels
    if len(names) != labels.num_classes or len(set(names)) != len(names):
        values = ", ".join(map(labels.show, labels.values[:12]))
        raise UserError(
            f"--class-names: {len(names)} names for {labels.num_classes} classes (the mask values "
            f"{values}); give one for each, all different"
        )
    return replace(labels, names=tuple(names))


def _check_two(masks: MaskValues, labels: Labels) -> None:
    """Both sides of the threshold must occur."""
    threshold = labels.threshold or 0
    values = [value for value in masks.values if value != labels.ignore]
    bright = [max(_unpacked(value)) if masks.rgb else value for value in values]
    if bright and (max(bright) <= threshold or min(bright) > threshold):
        side = "above" if min(bright) > threshold else "at or below"
        raise UserError(
            f"--mask-threshold {threshold}: all mask values ({min(bright)} to {max(bright)}) are "
            f"{side} it: nothing to tell apart"
        )


def _unpacked(code: int) -> Colour:
    return (code >> 16 & 0xFF, code >> 8 & 0xFF, code & 0xFF)


def _refuse_soft(masks: MaskValues) -> None:
    """Refuse masks whose values can't be classes, and say what they look like."""
    values, total = masks.values, sum(masks.counts.values())
    if masks.rgb:
        if len(values) > _SOFT:
            what = "soft edges" if masks.lossy is None else "lossy compression"
            raise UserError(
                f"{masks.lossy or 'the masks'}: {len(values)} different colours, as {what} make "
                "them; save masks as PNG with one colour per class, or name the classes' colours "
                "by --palette, or give --mask-threshold 127 where bright is the one class"
            )
        return
    if len(values) <= (2 if masks.lossy else _SOFT):
        return
    low, high = values[0], values[-1]
    quarter = (high - low) / 4
    dark = sum(n for v, n in masks.counts.items() if v <= low + quarter)
    bright = sum(n for v, n in masks.counts.items() if v >= high - quarter)
    said = f"{masks.lossy or 'the masks'}: {len(values)} different values in the masks ({low} to {high})"
    if dark + bright >= _CLUSTERS * total and bright >= 0.4 * (total - dark):
        how = "as lossy compression makes them" if masks.lossy else "as soft edges make them"
        raise UserError(
            f"{said}, nearly all close to {low} or {high}, {how}: give --mask-threshold "
            f"{(low + high) // 2} to take what is brighter for the one class, or save them as PNG "
            "without soft edges"
        )
    if masks.lossy:
        raise UserError(
            f"{said}, as lossy compression makes them; a mask needs one value per class: save it as PNG"
        )
    if len(values) > IGNORE_ID:
        raise UserError(
            f"{said}: too many for classes; where each object has a number of its own, give "
            "--binary to take everything above zero for the one class"
        )


def soft_edges(masks: MaskValues, labels: Labels) -> str | None:
    """A warning where the classes may be soft edges of two; None where not."""
    between = labels.num_classes - 2
    if masks.rgb or labels.threshold is not None or between < 8 or labels.palette:
        return None
    ends = masks.counts.get(min(labels.values), 0) + masks.counts.get(max(labels.values), 0)
    if ends < 0.95 * sum(masks.counts.values()):
        return None
    low, high = min(labels.values), max(labels.values)
    return (
        f"{between} of the {labels.num_classes} classes have few pixels and lie between {low} and "
        f"{high}: if they are soft edges, give --mask-threshold {(low + high) // 2}; if each object "
        "has a number of its own, --binary"
    )


# -- palette files -------------------------------------------------------------------------


def read_palette(path: Path) -> list[NamedClass]:
    """The classes of a CSV file: lines of name,value or name,#rrggbb or name,red,green,blue.

    A class called ignore is left out of loss and scores. A first line without numbers is a
    heading.

    Raises:
        UserError: no such file, or a line that is none of these.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text in UTF-8"
        raise UserError(f"--palette {path}: {reason}; give a CSV file") from None
    rows = [
        (number, [cell.strip() for cell in row])
        for number, row in enumerate(csv.reader(text.splitlines()), start=1)
        if any(row)
    ]
    if rows and not any(re.search(r"[\d#]", cell) for cell in rows[0][1][1:]):
        del rows[0]
    classes = [_palette_line(path, number, cells) for number, cells in rows]
    names, values = [c.name for c in classes], [(c.is_colour, c.value) for c in classes]
    twice = [
        c.name for c in classes if names.count(c.name) + values.count((c.is_colour, c.value)) > 2
    ]
    if twice or len({c.is_colour for c in classes}) != 1 or len(classes) < 2:
        what = (
            f"{twice[0]} twice" if twice else "values and colours mixed, or less than two classes"
        )
        raise UserError(f"--palette {path}: {what}; each class has a line of its own")
    return classes


def _palette_line(path: Path, number: int, cells: list[str]) -> NamedClass:
    name, *rest = cells
    if name and len(rest) == 3 and all(c.isdigit() and int(c) < 256 for c in rest):
        red, green, blue = map(int, rest)
        return NamedClass(name, red << 16 | green << 8 | blue, True)
    if name and len(rest) == 1 and re.fullmatch(r"#[0-9a-fA-F]{6}", rest[0]):
        return NamedClass(name, int(rest[0][1:], 16), True)
    if name and len(rest) == 1 and rest[0].isdigit():
        return NamedClass(name, int(rest[0]), False)
    raise UserError(
        f"--palette {path}: line {number} is {','.join(cells)!r}; a line is name,value or "
        "name,#rrggbb or name,red,green,blue"
    )


def _from_palette(classes: list[NamedClass], masks: MaskValues, config: DataConfig) -> Labels:
    """The classes of a palette file, in its order."""
    path = config.palette
    palette = masks.palette
    if classes[0].is_colour and not masks.rgb:
        if palette is None:
            raise UserError(
                f"--palette {path}: names colours, and the masks are grey; give name,value lines"
            )
        places = {
            red << 16 | green << 8 | blue: k
            for k, (red, green, blue) in reversed(list(enumerate(palette)))
        }
        lost = [c.name for c in classes if c.value not in places]
        if lost:
            raise UserError(f"--palette {path}: {lost[0]}'s colour is not in the masks' palettes")
        classes = [NamedClass(c.name, places[c.value], False) for c in classes]
    if masks.rgb and not classes[0].is_colour:
        raise UserError(f"--palette {path}: names values, and the masks are colour images")
    kept = [c for c in classes if c.name.lower() != "ignore" and c.value != config.ignore_index]
    left_out = [c.value for c in classes if c not in kept]
    ignore = config.ignore_index if config.ignore_index is not None else next(iter(left_out), None)
    if len(kept) > IGNORE_ID:
        raise UserError(
            f"--palette {path}: {len(kept)} classes; at most {IGNORE_ID} can be told apart"
        )
    if config.classes not in (None, len(kept)):
        raise UserError(f"--classes {config.classes}: {path} names {len(kept)}")
    labels = Labels(
        tuple(c.value for c in kept),
        masks.rgb,
        ignore,
        palette,
        tuple(c.name for c in kept),
    )
    strange = [value for value in masks.values if value not in (*labels.values, ignore)]
    if strange:
        raise UserError(
            f"--palette {path}: the masks also hold {', '.join(map(labels.show, strange[:6]))} in "
            f"{sum(masks.counts[value] for value in strange)} pixel(s), as of "
            f"{masks.where.get(strange[0], 'some')}; add a line for each, named ignore where it is to "
            "be left out, or mend the masks"
        )
    return labels


# -- from the values alone -----------------------------------------------------------------


def infer_labels(
    values: list[int],
    *,
    rgb: bool = False,
    palette: tuple[Colour, ...] | None = None,
    classes: int | None = None,
    ignore: int | None = None,
    rarest: str = "",
) -> Labels:
    """Classes from the values found in the masks.

    Without `classes`, each value is a class, in rising order: {0, 255} and {0, 1} are two.
    With it, the values are taken for class ids where all are below `classes`, so that a class
    that no mask shows keeps its place.

    Args:
        rarest: what to say of the rarest value where there are too many.

    Raises:
        UserError: more or fewer values than classes, or no mask holds the value to ignore.
    """
    show = Labels((), rgb).show
    shown = ", ".join(map(show, values[:12])) + (", …" if len(values) > 12 else "")
    if ignore is not None and ignore not in values and (rgb or classes is None):
        raise UserError(f"--ignore-index {show(ignore)}: no mask holds it; the values are {shown}")
    kept = [value for value in values if value != ignore]
    if classes is None and len(kept) < 2:
        raise UserError(
            f"the masks hold one value only ({shown}): nothing to tell apart; check the masks, "
            "or give --classes"
        )
    if classes is not None and not rgb and max(kept, default=0) < classes:
        kept = _class_ids(classes, ignore)
    if len(kept) > IGNORE_ID:
        raise UserError(
            f"the masks hold {len(kept)} different values ({shown}): one value per class is "
            "needed, at most 255"
        )
    if len(kept) != (classes or len(kept)):
        raise UserError(
            f"--classes {classes}: the masks hold {len(kept)} values ({shown}){rarest}; mend the "
            "masks, leave --classes out to have one class per value, or name one of them with "
            "--ignore-index"
        )
    return Labels(tuple(kept), rgb, ignore, palette)


def _class_ids(classes: int, ignore: int | None) -> list[int]:
    """0 … C-1, of which the value to ignore can't be one."""
    if ignore is not None and ignore < classes:
        raise UserError(
            f"--classes {classes} counts the value {ignore} that --ignore-index names: give "
            f"--classes {classes - 1}, or leave it out"
        )
    return list(range(classes))
