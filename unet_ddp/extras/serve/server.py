"""The program that listens: it answers while the network is loaded, and until all requests are answered."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import uvicorn

from unet_ddp.extras.serve.app import Service
from unet_ddp.extras.serve.queue import PredictionQueue

_LAST_ANSWERS = 60  # seconds for them at the end: a client may never read its answer


class Server(uvicorn.Server):
    """uvicorn's server of a service; a signal ends it."""

    def __init__(self, service: Service) -> None:
        settings = uvicorn.Config(
            service.build_app(), lifespan="off", ws="none", log_config=None, log_level="warning",
            access_log=False, server_header=False,
        )  # fmt: skip
        super().__init__(settings)
        self.service = service

    def load(
        self, open_queue: Callable[[], PredictionQueue], address: str, pool: ThreadPoolExecutor
    ) -> Future[None]:
        """Load the network on another thread, and print the address; end if it can't be loaded."""

        def work() -> None:
            try:
                self.service.queue = open_queue()
                if not self.should_exit:
                    print(f"on {address} until Ctrl-C", flush=True)
            except BaseException:
                self.should_exit = True
                raise

        return pool.submit(work)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen until all requests are answered, and refuse others; then close."""
        self.service.is_stopping = True
        end = time.monotonic() + _LAST_ANSWERS
        while self.service.requests and time.monotonic() < end and not self.force_exit:
            await asyncio.sleep(0.05)
        self.config.timeout_graceful_shutdown = max(1, round(end - time.monotonic()))
        await super().shutdown(sockets)
