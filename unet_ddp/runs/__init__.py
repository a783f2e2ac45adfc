"""The folder of a run: its checkpoints, what it resumes from, what it reports."""
