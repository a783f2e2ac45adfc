"""The difference between two networks on the same images, and its interval."""
