"""The files of a prediction: masks, probabilities, overlays, run lengths, polygons."""
