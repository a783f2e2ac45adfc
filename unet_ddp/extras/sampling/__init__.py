"""Which images and classes an epoch shows."""
