"""Arrays of numbers as images: NPY files, and TIFFs of more than Pillow reads."""
