"""The parts that settings of data ask for, each imported when it is called.

Every command that prepares a data set hands them in, so that all prepare it alike.
"""

from __future__ import annotations

from pathlib import Path

from unet_ddp.checks.data_parts import ClassDraw, DataParts
from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.augmentation import Cut
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.samplers import Draw


def _write_demo(folder: Path) -> Path:
    from unet_ddp.extras.demo_set.draw import write_demo

    return write_demo(folder)


def _check_planes(
    config: DataConfig, table: Table, values: MaskValues, report: Report
) -> list[str]:
    from unet_ddp.extras.overlap.checks import check_planes
    from unet_ddp.extras.polygons.polygon_kind import BURNT

    if any(BURNT in pair.mask.name for *_, pair in table.groups):
        from unet_ddp.extras.polygons.checks import describe_polygons

        describe_polygons(table, report)
    return check_planes(config, table, values, report)


def _plan_draw(
    config: DataConfig, table: Table, labels: Labels, pairs: Pairs, *, seed: int
) -> ClassDraw | None:
    if not config.balance:
        return None
    from unet_ddp.extras.sampling.balance import plan_draw

    return plan_draw(config, table, labels, pairs, seed=seed)


def _plan_cuts(config: DataConfig, draw: Draw | None) -> Cut | None:
    if draw is None and config.scale_jitter is None:
        return None
    from unet_ddp.extras.sampling.cuts import plan_cuts

    return plan_cuts(config)


def _adapt(config: DataConfig, table: Table, data: PreparedData, seed: int) -> PreparedData:
    if config.validation_images is not None:
        from unet_ddp.extras.steps.validated import choose_validated

        data = choose_validated(config.validation_images, table, data, seed)
    if config.shares:
        from unet_ddp.extras.steps.shares import give_shares

        data = give_shares(config, data)
    if config.window is not None:
        from unet_ddp.extras.windows.draw import draw_windows

        data = draw_windows(config, data, seed)
    return data


DATA_PARTS = DataParts(
    write_demo=_write_demo,
    check_planes=_check_planes,
    plan_draw=_plan_draw,
    plan_cuts=_plan_cuts,
    adapt=_adapt,
)
