"""The built-in demo set."""
