"""Objects: masks in which each object has a number, its separation from others, and its scores."""
