"""Files of predictions beside mask and overlay: probabilities, run lengths, polygons, annotations."""
