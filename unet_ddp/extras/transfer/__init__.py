"""Weights from elsewhere: files of other programs, and of networks with other classes or bands."""
