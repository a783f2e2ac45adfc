"""Readers of image files: from any format to an array."""
