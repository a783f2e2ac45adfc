"""Settings of the server."""

import os
import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

import tyro

from unet_ddp.errors import Limit, UserError
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.settings import Heading, flag, settings_of

TOKEN = "UNET_DDP_TOKEN"
"""The environment's variable with the secret that requests must have."""
OWN_HOSTS = ("127.0.0.1", "localhost")
"""Addresses that programs on this machine alone reach."""


@dataclass(frozen=True)
class ServeConfig(PredictConfig):
    """Answer images that programs send by HTTP with masks or JSON, until Ctrl-C."""

    inputs: tuple[str, ...] = ()
    model: Annotated[tuple[str, ...], tyro.conf.Positional, flag("[FILE ...]")] = ()
    """Checkpoint or exported network, or its address; several are averaged (default: as predict.py)."""
    host: Annotated[str, flag("ADDRESS"), Heading("Who may ask")] = OWN_HOSTS[0]
    """IPv4 address to listen on, e.g. 0.0.0.0 for all of this machine; another than 127.0.0.1 needs a token in UNET_DDP_TOKEN."""
    port: Annotated[int, flag("N"), Limit(0, 65535)] = 8000
    """Port to listen on; 0: any that is free."""
    max_megabytes: Annotated[float, flag("N"), Limit(above=0), Heading("Limits")] = 32.0
    """Size of a request's body, in millions of bytes."""
    max_megapixels: Annotated[float, flag("N"), Limit(above=0)] = 100.0
    """Size of an image, in millions of pixels."""
    max_requests: Annotated[int, flag("N"), Limit(at_least=1)] = 64
    """Images that are received, wait or are predicted; further ones are refused until one is answered."""
    timeout: Annotated[float, flag("SECONDS"), Limit(above=0)] = 30.0
    """Time in which a body must arrive."""

    unused: ClassVar[frozenset[str]] = frozenset(settings_of(PredictConfig)) - {
        "model", "network", "scale", "threshold", "tta", "tile", "overlap", "ground_resolution",
        "batch_size", "workers", "precision", "device",
    }  # fmt: skip

    @property
    def token(self) -> str | None:
        """The secret that requests must have; None without one, on this machine alone.

        Raises:
            UserError: it can be guessed, or not be sent, or there is none and others can reach the server.
        """
        token = os.environ.get(TOKEN)
        # Of other letters, clients send different bytes.
        can_be_sent = re.fullmatch("[!-~][ -~]{14,}[!-~]", token or "")
        if not can_be_sent and (token is not None or self.host not in OWN_HOSTS):
            raise UserError(
                f"--host {self.host}: set {TOKEN} to a secret of 16 or more characters of ASCII, which "
                "requests must have: openssl rand -hex 16; or unset it, with --host 127.0.0.1"
            )
        return token
