"""The report of a run, and the comparison of runs."""
