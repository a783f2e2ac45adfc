"""Classes that a file names and orders: ``--palette FILE``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from unet_ddp.config import DataConfig
from unet_ddp.data.csv_cells import read_rows
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID, pack_colour
from unet_ddp.errors import UserError, count_of, shorten
from unet_ddp.files import as_path, is_address


def read_palette(path: Path) -> tuple[dict[str, int], bool]:
    """Read the values of classes by name from a CSV file, and whether they are colours.

    Its lines are name,value or name,#rrggbb or name,red,green,blue; the first may be a header. CVAT's
    labelmap.txt and Roboflow's _classes.csv are read, too.
    """
    values: dict[str, int] = {}
    kinds, is_turned = set(), False  # Roboflow's header says that values come first
    for number, (line, row) in enumerate(read_rows(path, "--palette")):
        row = [cell.strip() for cell in row]
        is_turned = is_turned or [cell.lower() for cell in row] == ["pixel value", "class"]
        name, *cells = row[::-1] if is_turned and len(row) == 2 else _order_cells(row)
        if number == 0 and not any(re.search(r"[\d#]", cell) for cell in cells):
            continue  # a header
        value, is_colour = _parse_value(cells)
        if value is None or not name:
            text = shorten(",".join([name, *cells]))
            raise UserError(
                f"--palette {path}: line {line} is {text}; a line is name,value or name,#rrggbb or "
                "name,red,green,blue"
            )
        if name in values or value in values.values():
            raise UserError(f"--palette {path}: line {line} has the name or value of another class")
        values[name] = value
        kinds.add(is_colour)
    if len(kinds) != 1 or len(values) < 2:
        raise UserError(f"--palette {path}: values and colours mixed, or fewer than two classes")
    return values, kinds.pop()


def check_order(masks: str | None, known: Mapping[str, int]) -> None:
    """Refuse masks whose palette.csv, as `import` writes one, has other indices for classes of `known` indices.

    Imports of other files may have other classes: each numbers its own.
    """
    if masks is None or is_address(masks) or not (path := Path(masks) / "palette.csv").is_file():
        return
    try:
        names = [*read_palette(path)[0]]
    except UserError:  # another file of this name
        return
    for index, name in enumerate(names):
        if known.get(name, index) != index:
            raise UserError(
                f"{path}: {name} is {index} in these masks, and {known[name]} where the network is trained; import them "
                "again with --palette and the palette.csv of its masks"
            )


def _order_cells(cells: list[str]) -> list[str]:
    """Return a name and a value of CVAT's name:red,green,blue:parts:actions or Roboflow's value,name; others as they are."""
    coloured = re.fullmatch(r"([^:]+):([0-9]+,[0-9]+,[0-9]+):[^:]*:[^:]*", ",".join(cells))
    if coloured:
        return [coloured[1], *coloured[2].split(",")]
    is_turned = len(cells) == 2 and _parse_value(cells[1:])[0] is None
    return cells[::-1] if is_turned and _parse_value(cells[:1])[0] is not None else cells


def _parse_value(cells: list[str]) -> tuple[int | None, bool]:
    """Return value, red,green,blue or #rrggbb as a number, None for others, and if it is a colour."""
    numbers = [int(cell) for cell in cells if re.fullmatch("[0-9]{1,5}", cell)]
    if len(cells) == len(numbers) == 3 and max(numbers) < 256:
        return pack_colour(numbers), True
    if len(cells) == 1 and re.fullmatch(r"#[0-9a-fA-F]{6}", cells[0]):
        return int(cells[0][1:], 16), True
    if len(cells) == len(numbers) == 1 and numbers[0] < 65536:
        return numbers[0], False
    return None, False


def match_palette(masks: MaskValues, config: DataConfig) -> Labels:
    """Return the classes of the palette file in its order; one named ignore is ignored."""
    path = as_path(str(config.palette))
    values, is_colour = read_palette(path)
    if masks.rgb and not is_colour:
        raise UserError(f"--palette {path}: names values, and the masks are colour images")
    if is_colour and not masks.rgb:
        values = _as_indices(values, masks, path)
        check_order(config.val_masks, values)
    ignore = config.ignore_index
    kept = {}
    for name, value in values.items():
        if name.lower() != "ignore" and value != config.ignore_index:
            kept[name] = value
        elif ignore is None:
            ignore = value
    if len(kept) < 2:
        raise UserError(f"--palette {path}: fewer than two classes that are not ignored")
    if len(kept) > IGNORE_ID:
        raise UserError(f"--palette {path}: {len(kept)} classes; at most {IGNORE_ID} are possible")
    if config.classes not in (None, len(kept)):
        raise UserError(f"--classes {config.classes}: {path} names {len(kept)}")
    missing = [value for value in masks.values if value not in (*kept.values(), ignore)]
    if missing and not config.round_masks:
        pixels = count_of(sum(masks.counts[value] for value in missing), "pixel")
        example = masks.examples[missing[0]]
        raise UserError(
            f"--palette {path}: the masks also contain {masks.show(missing)} in {pixels}, e.g. in "
            f"{example}; add a line for each (named ignore to leave it out), or use --round-masks for soft edges"
        )
    return Labels(tuple(kept.values()), masks.rgb, ignore, masks.palette, tuple(kept))


def _as_indices(values: dict[str, int], masks: MaskValues, path: Path) -> dict[str, int]:
    """Return the indices that colours have in palette masks."""
    if masks.palette is None:
        reason = masks.clash or "the masks are grey; use name,value lines"
        raise UserError(f"--palette {path}: names colours, and {reason}")
    colours = [*map(pack_colour, masks.palette)]
    indices = {}
    for name, colour in values.items():
        if colour not in colours:
            raise UserError(f"--palette {path}: {name}'s colour is not in the masks' palettes")
        indices[name] = colours.index(colour)
    return indices
