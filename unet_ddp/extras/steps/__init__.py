"""Images of long runs: the sources of each step, and the validation images that an epoch scores."""
