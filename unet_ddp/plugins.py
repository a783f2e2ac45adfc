"""Parts that the core finds by name: it imports none of them, and each is imported when it is named."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from unet_ddp.errors import UserError

_BUILT_IN = {
    "commands": {
        "train": "unet_ddp.commands.train:main",
        "predict": "unet_ddp.commands.predict:main",
        "doctor": "unet_ddp.commands.doctor:main",
        "evaluate": "unet_ddp.commands.evaluate:main",
        "import": "unet_ddp.extras.annotations.command:main",
        "pack": "unet_ddp.extras.packs.command:main",
        "report": "unet_ddp.extras.report.command:main",
        "compare": "unet_ddp.extras.report.compare:main",
        "tune": "unet_ddp.extras.tune.command:main",
        "export": "unet_ddp.extras.onnx.export:main",
        "demo": "unet_ddp.extras.demo.command:main",
        "demo-data": "unet_ddp.extras.demo_set.command:main",
    },
    "labels": {
        "classes": "unet_ddp.data.labels:Labels",
        "objects": "unet_ddp.extras.objects.labels:ObjectLabels",
    },
    "readers": {  # by suffix
        **dict.fromkeys(
            ("jpg", "jpeg", "png", "gif", "bmp", "webp"), "unet_ddp.data.readers.pillow:PillowFile"
        ),
        "npy": "unet_ddp.extras.formats.npy:NpyFile",
        "tif": "unet_ddp.extras.geo.reader:MapFile",
        "tiff": "unet_ddp.extras.geo.reader:MapFile",
    },
    "settings": {
        "objects": "unet_ddp.extras.objects.settings:ObjectSettings",
        "losses": "unet_ddp.extras.losses.settings:FactorSettings",
        "wandb": "unet_ddp.extras.wandb.settings:WandbSettings",
        "budget": "unet_ddp.extras.planners.settings:BudgetSettings",
        "sampling": "unet_ddp.extras.sampling.settings:BalanceSettings",
        "cache": "unet_ddp.extras.cache.settings:CacheSettings",
        "profile": "unet_ddp.extras.diagnose.settings:ProfileSettings",
        "lists": "unet_ddp.extras.outputs.settings:ListSettings",
        "object_table": "unet_ddp.extras.objects.settings:ObjectTableSettings",
        "annotations": "unet_ddp.extras.outputs.settings:AnnotationSettings",
        "rank": "unet_ddp.extras.rank.settings:RankSettings",
    },
    "label_rules": {  # by setting
        "instances": "unet_ddp.extras.objects.rules:infer_labels",
        "palette": "unet_ddp.extras.palettes.rules:match_palette",
    },
    "draws": {"balance": "unet_ddp.extras.sampling.balance:plan_draw"},  # by setting
    "tuners": {"objects": "unet_ddp.extras.objects.tuning:SeparationTuner"},
    "pairs": {
        "pack": "unet_ddp.extras.packs.pairs:open_pack",
        "address": "unet_ddp.extras.cloud.pairs:CloudPairs",
        "demo": "unet_ddp.extras.demo_set.draw:write_demo",
    },
    "profilers": {"profile": "unet_ddp.extras.diagnose.profiling:start_profile"},  # by setting
    "sample_stores": {"cache": "unet_ddp.extras.cache.samples:open_cache"},
    "planners": {
        "batch_size": "unet_ddp.extras.planners.batch_size:plan",
        "learning_rate": "unet_ddp.extras.planners.learning_rate:plan",
        "budget": "unet_ddp.extras.planners.budget:plan",
    },
    "losses": {
        "dice": "unet_ddp.training.losses:Dice",
        "ce": "unet_ddp.training.losses:CrossEntropy",
        "tversky": "unet_ddp.extras.losses.terms:Tversky",
        "lovasz": "unet_ddp.extras.losses.terms:Lovasz",
        "focal": "unet_ddp.extras.losses.terms:Focal",
    },
    "networks": {
        "unet": "unet_ddp.network.unet:UNet",
        "smp": "unet_ddp.network.smp:build",
    },
    "augmentations": dict.fromkeys(
        ("none", "photo", "overhead", "street"), "unet_ddp.data.augmentation:Augmentation"
    ),
    "pixel_factors": {
        "boundary_weight": "unet_ddp.extras.losses.factors:BoundaryWeight",
        "hard_pixels": "unet_ddp.extras.losses.factors:HardPixels",
    },
    "addresses": {  # of objects in storage
        "open": "unet_ddp.extras.cloud.remote:open_address",
        "replace": "unet_ddp.extras.cloud.remote:replacing_object",
        "check": "unet_ddp.extras.cloud.objects:check_answers",
        "ahead": "unet_ddp.extras.cloud.objects:hold",
        "run_folder": "unet_ddp.extras.cloud.remote:working_folder",
        "reading": "unet_ddp.extras.cloud.reading:how_to_read",
    },
    "compilers": {
        "network": "unet_ddp.extras.diagnose.compiled:compile_network",
        "uncompiled": "unet_ddp.extras.diagnose.compiled:describe_uncompiled",
    },
    "backends": {"onnx": "unet_ddp.extras.onnx.backend:open_onnx"},  # by suffix
    "writers": {"wandb": "unet_ddp.extras.wandb.writer:WandbWriter"},
    "runs": {"cloud": "unet_ddp.extras.cloud.mirror:CloudMirror"},
    "weights": {
        "given": "unet_ddp.extras.transfer.fit:read_weights",
        "foreign": "unet_ddp.extras.transfer.foreign:read_foreign",
    },
    "failures": {
        "any": "unet_ddp.extras.diagnose.failures:explain_error",
        "memory": "unet_ddp.extras.diagnose.memory:explain",
        "shortage": "unet_ddp.extras.diagnose.memory:describe_shortage",
    },
    "hosts": {
        "join": "unet_ddp.extras.hosts.elastic:follow_launcher",
        "silence": "unet_ddp.extras.hosts.elastic:end_silent_connections",
        "start": "unet_ddp.extras.hosts.compare:check_hosts",
        "data": "unet_ddp.extras.hosts.compare:check_data",
    },
    "reports": {
        "run": "unet_ddp.extras.report.write:write_reports",
        "evaluation": "unet_ddp.extras.report.write:render_evaluation",
        "cloud": "unet_ddp.extras.cloud.report:local_run",
    },
    "outputs": {
        "mask": "unet_ddp.prediction.outputs.mask:MaskFile",
        "overlay": "unet_ddp.prediction.outputs.overlay:Overlay",
        "probabilities": "unet_ddp.prediction.outputs.probabilities:Probabilities",
        "rle": "unet_ddp.extras.outputs.rle:RunLengths",
        "objects": "unet_ddp.extras.objects.table:ObjectTable",
        "polygons": "unet_ddp.extras.outputs.polygons:Polygons",
        "rank": "unet_ddp.extras.rank.output:Rank",
        "annotations": "unet_ddp.extras.outputs.annotations:open_annotations",
    },
}


def find(point: str, name: str) -> Any:
    """Return the part `name` of a point: built in, of an installed package, or at `module:attribute`.

    A package names it as an entry point of the group `unet_ddp.<point>`. The module of a path is also looked
    for in the working folder.

    Raises:
        UserError: it can't be imported, or there is none of that name.
    """
    path = _BUILT_IN[point].get(name)
    if path is not None:
        return _load(path)
    try:
        if ":" in name and str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        return _load(_find_path(point, name))
    except (Exception, SystemExit) as error:  # of code that is not ours
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{name}: can't be imported ({reason}); fix it, or name another") from None


def digest_sources(parts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the digest of the source of each part that is not built in, by name; see `read_sources`."""
    return {name: digest(text) for name, text in read_sources(parts).items()}


def digest(text: str) -> str:
    """Return the first digits of the SHA-256 of a source; empty if it is."""
    return text and hashlib.sha256(text.encode()).hexdigest()[:8]


def read_sources(parts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the text of the file that defines each part that is not built in, by name, of (point, name)s."""
    return {
        name: _read_source(find(point, name))
        for point, name in parts
        if name not in _BUILT_IN[point]
    }


def _read_source(part: object) -> str:
    try:
        file = inspect.getsourcefile(inspect.unwrap(part))  # type: ignore[arg-type]
        return Path(file or "").read_text(encoding="utf-8", errors="replace")
    except (OSError, TypeError):  # of a module without a file
        return ""


def is_built_in(point: str, name: str) -> bool:
    """Return whether the package has a part of that name."""
    return name in _BUILT_IN[point]


def is_known(point: str, name: str) -> bool:
    """Return whether a part of that name is built in or installed, or may be at a path."""
    return name in _BUILT_IN[point] or bool(_find_path(point, name))


def check_known(point: str, name: str, flag: str) -> None:
    """Raise a UserError about `flag` if no part of that name is built in or installed, nor it is a path."""
    if not is_known(point, name):
        known = ", ".join(_BUILT_IN[point])
        raise UserError(f"{flag} {name}: not one of {known}, nor MODULE:NAME")


def list_names(point: str) -> list[str]:
    """Return the names of all parts of a point, those of installed packages last."""
    return [*_BUILT_IN[point], *list_installed(point)]


def list_installed(point: str) -> list[str]:
    """Return the names of the parts that installed packages bring, sorted."""
    return sorted(_installed(point, tuple(sys.path)))


def _find_path(point: str, name: str) -> str:
    """Return the `module:attribute` of a user's part, empty if there is none."""
    return name if ":" in name else _installed(point, tuple(sys.path)).get(name, "")


@cache
def _installed(point: str, search_path: tuple[str, ...]) -> Mapping[str, str]:
    """Return the `module:attribute` of each part of the packages on a search path, by name."""
    from importlib.metadata import entry_points

    return {part.name: part.value for part in entry_points(group=f"unet_ddp.{point}")}


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)
