"""From folders of files to batches of uint8 tensors."""
