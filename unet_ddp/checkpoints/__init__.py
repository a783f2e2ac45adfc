"""The file of a checkpoint, what it says of its network, and the files of a run."""
