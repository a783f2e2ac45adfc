"""``python -m unet_ddp serve``: predict the images that programs send by HTTP."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from unet_ddp.checkpoints.weights import find_model
from unet_ddp.cli import parse
from unet_ddp.distributed.device import pick_device
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, check_installed
from unet_ddp.extras.serve.settings import ServeConfig
from unet_ddp.files import ended_by_sigterm, temporary_folder
from unet_ddp.prediction.load import load_predictor
from unet_ddp.prediction.pipeline import one_core_each

_LAST_ANSWERS = 60  # seconds for them at the end: a client may never read its answer


def main(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C or SIGTERM, answer the waiting requests, and return the exit status."""
    config = parse(ServeConfig, argv, prog="python -m unet_ddp serve")
    for module in ("starlette", "uvicorn", "rasterio"):
        check_installed(module, "serve", "serve")
    import uvicorn

    from unet_ddp.extras.serve.app import Service
    from unet_ddp.extras.serve.queue import PredictionQueue

    with (
        listen(config) as listener,
        ended_by_sigterm(),
        TemporaryDirectory(prefix="unet_ddp-", dir=temporary_folder()) as folder,
    ):
        world = World(device=pick_device(config.device))
        models = [find_model(name, typed="serve {}") for name in config.model or [None]]
        predictor = load_predictor(config, models, world)
        is_gpu = world.device.type == "cuda"
        workers = config.workers or (2 if is_gpu else world.cores)
        predictor.concurrency = workers
        print(f"on http://{config.host}:{listener.getsockname()[1]}/ until Ctrl-C", flush=True)
        with (
            nullcontext() if is_gpu else one_core_each(workers),
            ThreadPoolExecutor(workers) as pool,
            suppress(KeyboardInterrupt, SystemExit),  # uvicorn's, once all requests are answered
        ):
            queue = PredictionQueue(predictor, Path(folder), pool, config)
            app = Service(queue, config).build_app()
            settings = uvicorn.Config(
                app, lifespan="off", ws="none", log_config=None, log_level="warning",
                access_log=False, server_header=False, timeout_graceful_shutdown=_LAST_ANSWERS,
            )  # fmt: skip
            uvicorn.Server(settings).run(sockets=[listener])
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
