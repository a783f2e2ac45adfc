"""Automatic annotation in CVAT; its commands name this module: ``--function-module unet_ddp.extras.cvat``."""

from unet_ddp.extras.cvat.function import create

__all__ = ["create"]
