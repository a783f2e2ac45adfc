"""Train a U-Net: the same program as `python -m unet_ddp train`."""

from unet_ddp.commands.train import main

if __name__ == "__main__":
    main()
