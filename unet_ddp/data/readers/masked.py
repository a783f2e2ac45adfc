"""Masked arrays of NumPy, as rasterio's `read(masked=True)` returns them."""

from __future__ import annotations

import numpy as np

from unet_ddp.errors import UserError


def refuse_masked(value: object, start: str, advice: str) -> None:
    """Refuse an array with masked pixels, or a list of such: as plain arrays they have the values behind the mask."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
        raise UserError(f"{start} a masked array; fill it, e.g. by .filled(0), {advice}")
