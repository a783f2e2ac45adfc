"""The folder of a run: what it resumes from, what it reports."""
