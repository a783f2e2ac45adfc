"""Weights of networks with other classes or bands, and of encoders, for a new run."""
