"""Stories of `python -m unet_ddp` that are too long for `__main__`."""
