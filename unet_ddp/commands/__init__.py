"""The commands of `python -m unet_ddp`."""
