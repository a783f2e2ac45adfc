"""Readers of image files: base.py says what one is, read.py finds it."""
