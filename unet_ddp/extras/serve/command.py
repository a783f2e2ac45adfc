"""``python -m unet_ddp serve``: predict the images that programs send by HTTP."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from unet_ddp.checkpoints.weights import find_model
from unet_ddp.cli import parse
from unet_ddp.distributed.device import pick_device
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, check_installed
from unet_ddp.extras.serve.settings import ServeConfig
from unet_ddp.files import ended_by_sigterm, temporary_folder
from unet_ddp.prediction.load import load_predictor
from unet_ddp.prediction.threads import one_core_each

_SIDE = 64  # pixels of the blank image


def main(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C or SIGTERM, answer the waiting requests, and return the exit status."""
    config = parse(ServeConfig, argv, prog="python -m unet_ddp serve")
    for module in ("starlette", "uvicorn", "prometheus_client", "rasterio"):
        check_installed(module, "serve", "serve")
    from unet_ddp.extras.serve.app import Service
    from unet_ddp.extras.serve.queue import PredictionQueue
    from unet_ddp.extras.serve.server import Server

    with (
        listen(config) as listener,
        ended_by_sigterm(),
        TemporaryDirectory(prefix="unet_ddp-", dir=temporary_folder()) as folder,
    ):
        world = World(device=pick_device(config.device))
        models = [find_model(name, typed="serve {}") for name in config.model or [None]]
        is_gpu = world.device.type == "cuda"
        workers = config.workers or (2 if is_gpu else world.cores)
        server = Server(Service(None, config))
        address = f"http://{config.host}:{listener.getsockname()[1]}/"
        with (
            nullcontext() if is_gpu else one_core_each(workers),
            ThreadPoolExecutor(workers) as pool,
            suppress(KeyboardInterrupt, SystemExit),  # uvicorn's, once all requests are answered
        ):

            def open_queue() -> PredictionQueue:
                predictor = load_predictor(config, models, world)
                predictor.concurrency = workers
                # A blank image: the network answers, and the first client waits for no library.
                wanted = predictor.format
                predictor(np.zeros((_SIDE, _SIDE, wanted.channels), wanted.dtype))
                return PredictionQueue(predictor, Path(folder), pool, config)

            loading = server.load(open_queue, address, pool)
            server.run(sockets=[listener])
            loading.result()
    return 0


def listen(config: ServeConfig) -> socket.socket:
    """Return a socket at the server's address, for those who may reach it."""
    _ = config.token  # refused before the network is loaded
    try:
        return socket.create_server((config.host, config.port))
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # Python adds the address
        raise UserError(
            f"--host {config.host} --port {config.port}: can't listen there ({reason}); use another --port"
        ) from None
