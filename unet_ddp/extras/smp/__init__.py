"""Networks of segmentation-models-pytorch."""
