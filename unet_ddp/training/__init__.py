"""The training step, its state and loss, and what guards and measures it."""
