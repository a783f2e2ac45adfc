"""Map coordinates in a data set: a mask's are its image's, and all images have one ground resolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from unet_ddp.checks.scan import ScannedPair
from unet_ddp.checks.summary import Report
from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.pack_index import FileKind
from unet_ddp.data.readers.maps import INSTALL, ground_scale
from unet_ddp.data.readers.resize import scaled_size
from unet_ddp.errors import UserError

_FAR = 0.1  # of an image's pixel: a mask's corner may be elsewhere by so much


def check_places(report: Report, scanned: Sequence[ScannedPair]) -> Sequence[ScannedPair]:
    """Report masks that are elsewhere on the map than their images, and return the pairs."""
    lines = []
    for pair, image, mask in scanned:
        if image.place is None or mask.place is None:
            continue
        corners = [
            place.to_map(np.array([[0, 0], [1, 0], [0, 1], [1, 1]]) * header.size[::-1])
            for place, header in ((image.place, image.header), (mask.place, mask.header))
        ]
        side = np.hypot(*(corners[0][1] - corners[0][0])) / image.header.width
        far = float(np.abs(corners[1] - corners[0]).max() / side)
        if _differ(image.place.crs, mask.place.crs):
            lines.append(f"{pair.mask}: its CRS is not that of {pair.image}; use gdalwarp -t_srs")
        elif far > _FAR:
            lines.append(
                f"{pair.mask} lies {far:.3g} pixels off its image {pair.image} on the map; use "
                "gdalwarp -te -ts"
            )
    report.add_problems(lines)
    return scanned


def _differ(one: str, other: str) -> bool:
    """Return whether two CRS are known and not one."""
    if one == other or not one or not other:
        return False
    from rasterio.crs import CRS

    return bool(CRS.from_wkt(one) != CRS.from_wkt(other))


def bring_to_ground(config: DataConfig, table: Table) -> Table:
    """Return the table with the files' sizes at --ground-resolution, if that is given.

    Raises:
        UserError: an image's resolution is not known, or too coarse.
    """
    wanted = config.ground_resolution
    if wanted is None:
        return table
    kinds = []
    for kind, _, pair in table.groups:
        path, own, headers = pair.image, kind.image.ground_resolution, []
        if not own:
            raise UserError(
                f"--ground-resolution: {path} has no map coordinates with a CRS; to read them "
                f"needs {INSTALL}"
            )
        factor = ground_scale(path, own, config.scale, wanted) / config.scale
        for header in (kind.image, kind.mask):
            height, width = scaled_size(*header.size, factor)
            headers.append(replace(header, height=height, width=width))
        kinds.append(FileKind(kind.suffixes, *headers))
    return replace(table, kinds=kinds)
