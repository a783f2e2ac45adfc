"""Scores on any number of ranks: dataset reads, scoring counts, results scores, tables writes."""
