"""Several processes: compared before a run begins, as their hosts may share nothing."""
