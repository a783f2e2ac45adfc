"""Networks as files for other programs."""
