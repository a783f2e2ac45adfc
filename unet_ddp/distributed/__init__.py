"""The processes of a run; the only room that imports torch.distributed and torch.nn.parallel."""
