"""Train a U-Net: the same program as `python -m unet_ddp train`."""

from functools import partial

from unet_ddp.__main__ import run, start

main = partial(run, "train")

if __name__ == "__main__":
    start(main)
