"""Predict masks with a trained network: the same program as `python -m unet_ddp predict`."""

from functools import partial

from unet_ddp.__main__ import run, start

main = partial(run, "predict")

if __name__ == "__main__":
    start(main)
