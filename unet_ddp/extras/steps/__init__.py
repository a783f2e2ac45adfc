"""Runs that count in steps: the validation images that an epoch scores."""
