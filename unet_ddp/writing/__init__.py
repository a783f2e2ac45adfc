"""What becomes of predictions: masks, overlays, probabilities, run lengths, outlines.

Every file is written whole or not at all.
"""
