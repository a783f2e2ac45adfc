"""Decoded samples on disk."""
