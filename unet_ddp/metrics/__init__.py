"""Scores from integer counts, which add up the same in any order and on any ranks."""
