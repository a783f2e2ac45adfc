"""Suffixes that masks' names add to their images', and images that have several masks."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from unet_ddp.data.names import without_compound
from unet_ddp.errors import UserError

MASKS = {
    "mask", "label", "gt", "seg", "segmentation", "annotation", "truth", "groundtruth", "manual", "target",
}  # fmt: skip
"""Words that say mask."""

_NUMBER = re.compile(r"[ _.-]*\d+")

Files = dict[str, list[str]]  # by the key of their relative path without suffix


def detect_suffix(images: Collection[str], masks: Iterable[str], *, may_be_empty: bool) -> str:
    """Return what most masks add to an image's name: often nothing, or _mask.

    Of several that are as frequent, nothing, or one with a mask's word, else the shortest.
    """
    names = {*images, *map(without_compound, images)}
    least = 0 if may_be_empty else 1
    found = (_split(mask, names, least) for mask in masks)
    seen = Counter(parts[1] for parts in found if parts)
    return max(seen, key=lambda each: (seen[each], _says_mask(each), -len(each)), default="")


def _split(mask: str, names: Collection[str], least: int = 0) -> tuple[str, str] | None:
    """Return the image's name that a mask's begins with, and the rest of `least` letters; None without one.

    An image's name may be the start of another's (1 and 10): the longest one counts. It may be the start
    of a folder's, too (c and car/a), which says nothing.
    """
    for end in range(len(mask) - least, 0, -1):
        rest = mask[end:]
        if mask[:end] in names and not ("/" in rest and rest[0].isalnum()):
            return mask[:end], rest
    return None


def is_number(suffix: str) -> bool:
    """Return whether a suffix is empty, or a number alone: of another file of the same kind."""
    return not suffix or bool(_NUMBER.fullmatch(suffix))


def _says_mask(suffix: str) -> bool:
    return not suffix or not MASKS.isdisjoint(map(plain, re.split(r"[\W\d_]+", suffix)))


def plain(word: str) -> str:
    """Return a word in lower case, without a plural's s and numbers at its end."""
    return word.lower().rstrip("0123456789s")


def group_masks(images: Iterable[str], masks: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the masks whose names begin with that of each image and go on with a new word or number, by the rest.

    The mask x_2_mask is none of x, if as many others end with _mask: there was an image x_2. So is x_2m, if
    others end with m.
    """
    names = {short: name for name in images for short in (without_compound(name), name)}
    found = [(mask, parts) for mask in masks if (parts := _split(mask, names))]
    seen = Counter(rest for _, (_, rest) in found)
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for mask, (name, rest) in found:
        cuts = (k for k in range(1, len(rest)) if not rest[k - 1 : k + 1].isdigit())
        around = name[-1] + rest[:1]
        is_cut = rest and around.isalnum() and around[0].isdigit() == around[1].isdigit()
        if not is_cut and all(seen[rest[k:]] < seen[rest] for k in cuts):
            groups[names[name]][rest] = mask
    return groups


def refuse_several(images: Files, masks: Files, added: str) -> None:
    """Refuse a suffix that was detected, if an image has masks of others, as a file for each object.

    Not if only that one says mask, beside others or their beginning: x_mask, x_wt and x_mask_colour, but no
    x_mask_2, which may be the next object.
    """
    for name, group in group_masks(images, masks).items():
        others = sorted(rest for rest in group.keys() - {added} if _may_be_another(rest, added))
        if added in group and others:
            one, other = (masks[group[rest]][0] for rest in (added, others[0]))
            raise UserError(
                f"{images[name][0]}: has {len(group)} masks, e.g. {one} and {other}; if each is of an object, make one "
                "mask of them with python -m unet_ddp import; if they are of several kinds, name one: "
                f"{suffix_flag(added)}"
            )


def _may_be_another(rest: str, added: str) -> bool:
    if _says_mask(added) and rest.startswith(added):
        return bool(_NUMBER.fullmatch(rest[len(added) :]))
    return _says_mask(rest) or not _says_mask(added)


def suffix_flag(suffix: str) -> str:
    """Return the flag that names a suffix of masks, as it is typed."""
    value = shlex.quote(suffix)
    return f"--mask-suffix={value}" if suffix.startswith("-") else f"--mask-suffix {value}"
