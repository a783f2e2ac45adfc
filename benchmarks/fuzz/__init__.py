"""Seeded mutations of valid files, each given to a command in a process that may take 10 s and 1 GB."""
