"""Draws of the images and classes that an epoch shows."""
