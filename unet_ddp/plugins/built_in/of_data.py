"""Parts that read and label data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from unet_ddp.plugins.built_in.parts import Parts

if TYPE_CHECKING:
    from unet_ddp.config import DataConfig
    from unet_ddp.data.label_rules import MaskValues
    from unet_ddp.data.labels import Labels
    from unet_ddp.data.pairs import PairKind
    from unet_ddp.data.readers.base import OpenFile
    from unet_ddp.heads import Head
    from unet_ddp.storage import Storage

    MakeHead = Callable[[Labels], Head]
    LabelRule = Callable[[MaskValues, DataConfig], Labels]


def _classes() -> type[Labels]:
    from unet_ddp.data.labels import Labels

    return Labels


def _numbered_objects() -> type[Labels]:
    from unet_ddp.extras.objects.labels import ObjectLabels

    return ObjectLabels


def _overlapping_classes() -> type[Labels]:
    from unet_ddp.extras.overlap.labels import OverlapLabels

    return OverlapLabels


LABELS: Parts[type[Labels]] = {
    "classes": _classes,
    "numbered objects": _numbered_objects,
    "overlapping classes": _overlapping_classes,
}
"""By `Labels.kind`, as a checkpoint has it: made of its plain values."""


def _softmax() -> MakeHead:
    from unet_ddp.heads import Softmax

    return Softmax


def _object_softmax() -> MakeHead:
    from unet_ddp.extras.objects.head import ObjectSoftmax

    return ObjectSoftmax


def _sigmoid() -> MakeHead:
    from unet_ddp.extras.overlap.head import Sigmoid

    return Sigmoid


HEADS: Parts[MakeHead] = {
    "classes": _softmax,
    "numbered objects": _object_softmax,
    "overlapping classes": _sigmoid,
}
"""By `Labels.kind`, when something is predicted, scored or trained."""


def _images() -> type[OpenFile]:
    from unet_ddp.data.readers.pillow import PillowFile

    return PillowFile


def _npy() -> type[OpenFile]:
    from unet_ddp.extras.formats.npy import NpyFile

    return NpyFile


def _maps() -> type[OpenFile]:
    from unet_ddp.extras.geo.reader import MapFile

    return MapFile


def _polygons() -> type[OpenFile]:
    from unet_ddp.extras.polygons.reader import PolygonFile

    return PolygonFile


def _windows() -> type[OpenFile]:
    from unet_ddp.extras.windows.reader import WindowFile

    return WindowFile


READERS: Parts[type[OpenFile]] = {
    "jpg": _images,
    "jpeg": _images,
    "png": _images,
    "gif": _images,
    "bmp": _images,
    "webp": _images,
    "npy": _npy,
    "tif": _maps,
    "tiff": _maps,
    "polygons": _polygons,
    "window": _windows,
}
"""By suffix, when a file is first opened: called with its path."""


def _list() -> type[PairKind]:
    from unet_ddp.data.pair_kinds import PairList

    return PairList


def _items() -> type[PairKind]:
    from unet_ddp.extras.arrays.item_kind import ItemKind

    return ItemKind


def _class_folders() -> type[PairKind]:
    from unet_ddp.extras.overlap.class_folder_kind import ClassFolders

    return ClassFolders


def _folders() -> type[PairKind]:
    from unet_ddp.data.pair_kinds import Folders

    return Folders


def _pack() -> type[PairKind]:
    from unet_ddp.extras.packs.pack_kind import PackKind

    return PackKind


def _polygon_pairs() -> type[PairKind]:
    from unet_ddp.extras.polygons.polygon_kind import PolygonKind

    return PolygonKind


def _windowed() -> type[PairKind]:
    from unet_ddp.extras.windows.window_kind import Windows

    return Windows


PAIRS: Parts[type[PairKind]] = {
    "windows": _windowed,
    "polygons": _polygon_pairs,
    "list": _list,
    "items": _items,
    "class_folders": _class_folders,
    "folders": _folders,
    "pack": _pack,
}
"""Each in turn, when a data set is to be found; folders, at addresses too, read any file."""


def _objects_in_storage() -> type[Storage]:
    from unet_ddp.extras.cloud.storage import ObjectStorage

    return ObjectStorage


STORAGE: Parts[type[Storage]] = {
    "s3": _objects_in_storage,
    "gs": _objects_in_storage,
    "az": _objects_in_storage,
    "http": _objects_in_storage,
    "https": _objects_in_storage,
    "": _objects_in_storage,
}
"""By the scheme of an address, when one is first met; "": files in archives of this machine."""


def _instances() -> LabelRule:
    from unet_ddp.extras.objects.rules import infer_object_labels

    return infer_object_labels


def _overlap() -> LabelRule:
    from unet_ddp.extras.overlap.rules import infer_overlap_labels

    return infer_overlap_labels


def _palette() -> LabelRule:
    from unet_ddp.extras.palettes.rules import match_palette

    return match_palette


def _round_masks() -> LabelRule:
    from unet_ddp.extras.palettes.rounding import round_labels

    return round_labels


def _class_field() -> LabelRule:
    from unet_ddp.extras.polygons.classes import name_classes

    return name_classes


LABEL_RULES: Parts[LabelRule] = {
    "instances": _instances,
    "overlap": _overlap,
    "round_masks": _round_masks,
    "palette": _palette,
    "class_field": _class_field,
}
"""When the masks' values are known, by the setting. The first takes the place of the core's own rules."""
