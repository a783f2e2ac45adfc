"""Data sets as tar shards."""
