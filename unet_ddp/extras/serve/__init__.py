"""A server: images by HTTP in, masks out."""
