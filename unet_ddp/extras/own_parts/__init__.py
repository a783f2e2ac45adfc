"""Trials of parts of the user's own, before a run has its folder."""
