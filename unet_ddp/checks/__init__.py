"""The check of a data set before the first step: scan, rules, summary."""
