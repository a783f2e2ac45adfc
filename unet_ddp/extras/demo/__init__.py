"""A page to try a network on images."""
