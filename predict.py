"""Predict masks with a trained network: the same program as `python -m unet_ddp predict`."""

from unet_ddp.commands.predict import main

if __name__ == "__main__":
    main()
