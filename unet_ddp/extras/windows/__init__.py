"""Scenes by windows: `--window`."""
