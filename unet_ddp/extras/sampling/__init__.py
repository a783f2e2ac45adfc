"""Draws of the images and classes that an epoch shows, and the parts of them."""
