"""Scores from integer counts, which add up to the same in any order and on any ranks."""
