"""The order in which to label images."""
