"""Predict masks with a trained network: the same program as `python -m unet_ddp predict`."""

from unet_ddp.commands.predict import main
from unet_ddp.files import exit_on_signals

if __name__ == "__main__":
    exit_on_signals()
    main()
