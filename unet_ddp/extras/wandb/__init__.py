"""Weights & Biases (--wandb)."""
