"""Palette files: names, values and colours of classes."""
