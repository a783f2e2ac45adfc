"""Data that are not files: arrays, and the items of a data set."""
