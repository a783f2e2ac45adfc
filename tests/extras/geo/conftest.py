"""The folder that predictions of maps are made in."""

from __future__ import annotations

from tests.prediction.conftest import here

__all__ = ["here"]
