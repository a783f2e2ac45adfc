"""Scores of a trained network on pairs of images and masks, exact on any number of ranks."""
