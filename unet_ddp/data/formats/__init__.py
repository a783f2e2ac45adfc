"""From a file of any image format to an array."""
