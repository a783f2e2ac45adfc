"""Counts of the server, in the text format of Prometheus."""

from __future__ import annotations

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from unet_ddp import __version__

MEDIA_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """Counts of one server; the library adds memory and processor time of the process."""

    def __init__(self) -> None:
        self._registry = kept = CollectorRegistry()
        ProcessCollector(registry=kept)
        self.requests = Counter(
            "unet_ddp_requests", "Predictions and refused requests, by status", ["status"],
            registry=kept,
        )  # fmt: skip
        self.images = Counter("unet_ddp_images", "Images that were predicted", registry=kept)
        self.seconds = Histogram(
            "unet_ddp_prediction_seconds", "From an image's turn to its answer", buckets=_SECONDS,
            registry=kept,
        )  # fmt: skip
        self.queue_length = Gauge(
            "unet_ddp_queue_length", "Images whose turn has not come", registry=kept
        )
        versions = {"version": __version__, "torch": torch.__version__}
        Info("unet_ddp", "Versions of the server", registry=kept).info(versions)

    def show(self) -> bytes:
        """Return all counts as text."""
        return generate_latest(self._registry)
