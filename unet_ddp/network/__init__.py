"""The networks, synchronised batch norm, and mixed precision."""
