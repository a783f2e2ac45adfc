"""Readers of image files: read.py chooses one; endings are in header.py."""
