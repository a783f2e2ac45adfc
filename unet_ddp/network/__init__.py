"""The networks, and batch norm over all ranks."""
