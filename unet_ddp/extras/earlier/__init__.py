"""Flags and settings of earlier versions, understood in this version only."""
