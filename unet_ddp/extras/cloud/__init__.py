"""Runs at addresses: their mirror in object storage."""
