"""report.html: one file that opens from the disk, with figures, curves and the worst images."""

from __future__ import annotations

from unet_ddp.report.gallery import Picture, make_gallery
from unet_ddp.report.page import Page, figures, render
from unet_ddp.report.run import report_run, write_samples

__all__ = ["Page", "Picture", "figures", "make_gallery", "render", "report_run", "write_samples"]
