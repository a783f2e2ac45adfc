"""Planners: settings that are found before a run begins, by trying."""
