"""Settings of the data."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar

from unet_ddp.errors import INT32, Limit, UserError
from unet_ddp.plugins import is_own
from unet_ddp.settings import (
    MASK_VALUE,
    Brief,
    Calls,
    Excludes,
    Kind,
    Names,
    Needs,
    Percent,
    flag,
    joined,
)

DIR = flag("DIR")
N = flag("N")
PRESETS = "none", "photo", "overhead", "street"  # of augmentation
POSITIVE, NOT_NEGATIVE = Limit(at_least=1), Limit(at_least=0)


@dataclass(frozen=True)
@joined("data")
class DataConfig:
    """The images and masks, and how they are read."""

    kinds: ClassVar = (Kind.DATA,)

    images: Annotated[
        str | None, Kind.DATA_PLACE, DIR, Brief("Folder of images (default: data/imgs or a demo).")
    ] = None
    """Folder of images, or its address (s3://bucket/folder, gs://, az://), or a pack, which has the masks too, or MODULE:NAME (docs/how-to/from-arrays.md) (default: data/imgs, or the built-in demo set if that is empty)."""
    masks: Annotated[
        str | None, Kind.DATA_PLACE, DIR, Brief("Folder of masks (default: data/masks).")
    ] = None
    """Folder, or address, of masks named like their images, e.g. image.png or image_mask.gif for image.jpg, or a file of polygons on the map (docs/maps.md) (default: data/masks)."""
    pairs_file: Annotated[
        str | None,
        Kind.DATA_PLACE,
        Excludes("images", "val_images", "fold"),
        flag("FILE", name="list"),
    ] = None
    """CSV file of pairs instead of two folders, with paths or addresses (http:// too): columns image,mask and optionally group,split,source; a split is training, validation or test."""
    reader: Annotated[tuple[str, ...], Names("readers"), flag("MODULE:CLASS ...")] = ()
    """Reader of your own for images or masks of other kinds of files; docs/own_parts.md."""
    mask_suffix: Annotated[str | None, flag("TEXT")] = None
    """Text that mask names add to the image's name, e.g. _mask (default: detected)."""
    val_images: Annotated[str | None, Kind.DATA_PLACE, Needs("val_masks"), DIR] = None
    """Folder of validation images, instead of a share of --images."""
    val_masks: Annotated[str | None, Kind.DATA_PLACE, DIR] = None
    """Folder of the masks of --val-images."""
    scale: Annotated[
        float,
        Kind.FIXED,
        flag("FACTOR", "-s"),
        Limit(above=0, at_most=1),
        Brief("Resize images to this fraction."),
    ] = 1.0
    """Resize images to this fraction of their size, 0 < FACTOR <= 1, in training and prediction."""
    ground_resolution: Annotated[
        float | None, flag("METRES"), Limit(above=0, at_most=1_000_000)
    ] = None
    """Bring images with map coordinates, which need not have one resolution then, to pixels of this size on the ground, before scaling."""
    crop_size: Annotated[tuple[int, int] | None, flag("HEIGHT WIDTH"), Limit(at_least=16)] = None
    """Train on random crops of this size, after scaling (default: whole images if all have one size, else crops of the median size)."""
    window: Annotated[
        int | None,
        Kind.FIXED,
        Kind.EXTRA,
        Excludes("resize_masks", "cache"),
        N,
        Limit(at_least=32),
    ] = None
    """Read images by windows of N x N pixels, before scaling: for scenes that are too large to read whole; a multiple of 32 (docs/how-to/scenes.md)."""
    blocks: Annotated[
        int | None, Kind.FIXED, Kind.EXTRA, Excludes("val_images", "group_pattern"), N, POSITIVE
    ] = None
    """With --window: hold out blocks of N x N windows for validation, apart from the others, instead of whole scenes."""
    validation: Annotated[float, flag("PERCENT", "-v"), Percent(at_least=1, below=100)] = 10.0
    """Percentage of the images held out for validation; groups are kept whole."""
    group_pattern: Annotated[str | None, flag("REGEX")] = None
    """Images whose names match with the same text in the first bracket are one group, never split between training and validation (default: detected)."""
    fold: Annotated[str | None, Excludes("val_images"), flag("I/K")] = None
    """Cross-validation: divide the groups of images into K folds and validate on the I-th, e.g. 1/5."""
    validation_images: Annotated[int | None, Kind.FIXED, Kind.EXTRA, N, POSITIVE] = None
    """Score at most N of the validation images after each epoch, always the same, which choose best.pt; evaluate scores all."""
    channels: Annotated[int | None, Kind.FIXED, N, POSITIVE] = None
    """Channels of the network's input: 1 grey, 3 colour, 4 colour and transparency (default: as in the images)."""
    nodata: Annotated[float | None, Kind.FIXED, flag("VALUE")] = None
    """Value of image pixels without data, e.g. -9999 or nan; these pixels are ignored everywhere."""
    classes: Annotated[
        int | None,
        Kind.FIXED,
        flag("N", "-c"),
        Limit(2, 255, note="; the background is one of them"),
    ] = None
    """Number of classes, including the background (default: counted in the masks)."""
    class_names: Annotated[
        tuple[str, ...] | None, Kind.FIXED, Excludes("palette"), flag("NAME ...")
    ] = None
    """A name for each class, in the order of the mask values; with --instances, for each class of objects (docs/objects.md)."""
    round_masks: Annotated[
        bool,
        Kind.FIXED,
        Kind.EXTRA,
        Calls("label_rules"),
        Excludes("mask_threshold", "invert"),
    ] = False
    """With --classes or --palette: other mask values, of soft edges or JPEG, count as the nearest class."""
    palette: Annotated[
        str | None,
        Kind.DATA_PLACE,
        Kind.FIXED,
        Kind.EXTRA,
        Calls("label_rules"),
        Excludes("invert"),
        flag("FILE"),
    ] = None
    """CSV file of the classes: lines of name,value or name,#rrggbb; the one called ignore is excluded."""
    mask_threshold: Annotated[
        int | None, Kind.FIXED, Excludes("palette", "classes"), flag("VALUE"), NOT_NEGATIVE
    ] = None
    """Two classes: every value above this one is foreground: 0 for numbered objects, 127 for masks with soft edges."""
    invert: Annotated[bool, Kind.FIXED] = False
    """Two classes: treat dark pixels as foreground."""
    instances: Annotated[
        bool,
        Kind.FIXED,
        Kind.EXTRA,
        Calls("label_rules"),
        Excludes("mask_threshold", "palette", "classes", "invert", "round_masks"),
        Brief("Masks number their objects; keep these apart."),
    ] = False
    """Each object has a different number, or colour, in its mask: learn background, objects and their borders, and predict numbered objects (needs the extra objects; docs/objects.md)."""
    overlap: Annotated[
        bool,
        Kind.FIXED,
        Kind.EXTRA,
        Calls("label_rules"),
        Excludes("instances", "mask_threshold", "palette", "classes", "invert", "round_masks"),
    ] = False
    """Classes may overlap: masks are a folder for each class, a page of a TIFF for each, or bit fields; each class is learnt and predicted by itself (docs/how-to/overlapping-classes.md)."""
    class_field: Annotated[
        str | None,
        Kind.FIXED,
        Kind.EXTRA,
        Calls("label_rules"),
        Excludes("instances", "mask_threshold", "palette", "invert", "round_masks"),
        flag("NAME"),
    ] = None
    """Masks are polygons (--masks labels.gpkg, .geojson or .shp): their attribute with the class, a text or a whole number (default: all are of one class; docs/maps.md)."""
    all_masks: Annotated[bool, Kind.FIXED, Kind.EXTRA] = False
    """With --overlap: an image that lacks a mask in a class's folder is an error; without the flag, it has no pixel of the class."""
    ignore_index: Annotated[int | None, Kind.FIXED, MASK_VALUE, flag("VALUE"), INT32] = None
    """Mask value, or colour as #rrggbb, of pixels excluded from the loss and the scores."""
    resize_masks: bool = False
    """Resize masks that differ in size from their images, by nearest neighbour."""
    balance: Annotated[float, Kind.EXTRA, flag("PERCENT"), Percent(at_least=1, at_most=100)] = 0.0
    """Percentage of the training samples that are chosen by class, each class as often as any other, with crops around one of its pixels; e.g. 50 if classes are rare."""
    shares: Annotated[tuple[str, ...], Kind.FIXED, Kind.EXTRA, flag("SOURCE=SHARE ...")] = ()
    """Share of each step that is taken from each source in --list, or in a pack of one, e.g. street=0.7 night=0.3; an epoch has as many steps as without. With auto, half is from dark and half from bright images, if one kind is rare."""
    scale_jitter: Annotated[
        tuple[float, float] | None,
        Kind.EXTRA,
        flag("LOW HIGH"),
        Limit(at_least=0.1, at_most=10),
    ] = None
    """Resize each training image by a random factor before its crop, e.g. 0.5 2; whole images are cropped or padded to their size."""
    augmentation: Annotated[
        str,
        Names("augmentations"),
        flag("|".join(PRESETS)),
        Brief("What the images are of; none: no changes."),
    ] = "photo"
    """photo: mirroring, small shifts, zooms and rotations, brightness, contrast and colour; overhead: also upside down, for microscope, aerial and satellite images; street: mirroring and strong changes of colour; none. MODULE:NAME is one of your own; docs/own_parts.md."""

    def read_fold(self) -> tuple[int, int] | None:
        """Return the fold to validate on, from 1, and their number; None without --fold.

        Raises:
            UserError: it is no fold.
        """
        if self.fold is None:
            return None
        found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", self.fold)
        index, count = map(int, found.groups()) if found else (0, 0)
        if not 1 <= index <= count or count < 2:
            raise UserError(f"--fold {self.fold}: use I/K, the I-th of K folds, e.g. 1/5")
        return index, count

    def read_shares(self) -> dict[str, Fraction]:
        """Return the share of each source; none without --shares or with auto.

        Raises:
            UserError: they are no shares, or do not add up to 1.
        """
        shares: dict[str, Fraction] = {}
        if self.shares == ("auto",):
            return shares
        for text in self.shares:
            found = re.fullmatch(r"(.+)=(\d(?:\.\d{1,4})?|\d{1,3}/[1-9]\d{0,2})", text)
            if found is None or not Fraction(found[2]):
                raise UserError(
                    f"--shares {text}: use auto, or SOURCE=SHARE, e.g. street=0.7 or street=2/3"
                )
            if found[1] in shares:
                raise UserError(f"--shares: {found[1]} is given twice; give each source once")
            shares[found[1]] = Fraction(found[2])
        total = sum(shares.values())
        if shares and total != 1:
            raise UserError(
                f"--shares {' '.join(self.shares)}: add up to {float(total):.6g}, not 1; of three equal ones, "
                "each is 1/3"
            )
        return shares

    def check(self) -> None:
        """Raise a UserError if settings contradict each other."""
        if self.masks is not None and self.images is None:  # images alone are a pack
            raise UserError("--images and --masks: use both or neither")
        self.read_fold()
        is_pack = self.images is not None and self.masks is None
        if self.read_shares() and self.pairs_file is None and not is_pack:
            raise UserError(
                "--shares: is for a --list with a column source, or a pack of one; give --list, or the pack as "
                "--images without --masks"
            )
        if self.augmentation not in PRESETS and not is_own("augmentations", self.augmentation):
            known = ", ".join(PRESETS)
            raise UserError(
                f"--augmentation {self.augmentation}: not one of {known}, nor MODULE:NAME"
            )
        self._check_group_pattern()
        if self.window is not None and self.window % 32:
            nearest = self.window // 32 * 32
            raise UserError(f"--window {self.window}: is no multiple of 32; use {nearest}")
        if self.blocks is not None and self.window is None:
            raise UserError("--blocks: is for --window; use both or neither")
        if self.all_masks and not self.overlap:
            raise UserError("--all-masks: is for --overlap; use both or neither")
        if self.read_shares() and self.balance:  # auto gives way
            raise UserError("--shares and --balance: use one of them")
        if self.overlap and self.balance:
            raise UserError("--overlap and --balance: use one of them")
        low, high = self.scale_jitter or (1, 1)
        if low > high:
            raise UserError(f"--scale-jitter {low:g} {high:g}: use {high:g} {low:g}, LOW first")

    def _check_group_pattern(self) -> None:
        if self.group_pattern is None:
            return
        try:
            fault = "" if re.compile(self.group_pattern).groups else "has no group, as in '(.+)_'"
        except re.error as error:
            fault = f"not a regular expression: {error}"
        if fault:
            raise UserError(f"--group-pattern {self.group_pattern!r}: {fault}")
