"""The parts that settings of data ask for, each imported when it is called.

Every command that prepares a data set hands them in, so that all prepare it alike.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unet_ddp.checks.data_parts import DataParts
from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.matching import Report


def _write_demo(folder: Path) -> Path:
    from unet_ddp.extras.demo_set.draw import write_demo

    return write_demo(folder)


def _check_planes(
    config: DataConfig, table: Table, values: MaskValues, report: Report
) -> list[str]:
    from unet_ddp.extras.polygons.polygon_kind import BURNT

    if any(BURNT in pair.mask.name for *_, pair in table.groups):
        from unet_ddp.extras.polygons.checks import describe_polygons

        describe_polygons(table, report)
    if not config.overlap and not values.names:  # no mask is in a folder for each class
        return []
    from unet_ddp.extras.overlap.checks import check_planes

    return check_planes(config, table, values, report)


def _adapt(config: DataConfig, table: Table, data: PreparedData, seed: int) -> PreparedData:
    if config.balance:
        from unet_ddp.extras.sampling.balance import draw_by_class

        data = draw_by_class(config, table, data, seed)
    if config.balance or config.scale_jitter is not None:
        from unet_ddp.extras.sampling.cuts import plan_cuts

        data = replace(data, cut=plan_cuts(config))
    if config.validation_images is not None:
        from unet_ddp.extras.steps.validated import choose_validated

        data = choose_validated(config.validation_images, table, data, seed)
    if config.shares and not config.balance:
        from unet_ddp.extras.steps.shares import give_shares

        data = give_shares(config, table, data)
    if config.window is not None:
        from unet_ddp.extras.windows.draw import draw_windows

        data = draw_windows(config, data, seed)
    return data


DATA_PARTS = DataParts(
    write_demo=_write_demo,
    check_planes=_check_planes,
    adapt=_adapt,
)
