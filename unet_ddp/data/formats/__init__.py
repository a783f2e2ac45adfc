"""Readers of image files: read.py chooses pillow.py or arrays.py; endings are in header.py."""
