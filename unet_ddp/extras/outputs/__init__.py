"""Files of predictions for other programs: run lengths, polygons, annotations."""
