"""unet_ddp: train a U-Net on any folder of images and masks, on one process or many."""

from __future__ import annotations

__version__ = "0.1.0"
