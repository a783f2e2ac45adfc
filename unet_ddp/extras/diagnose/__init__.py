"""Lines for errors that are no fault of the code: lost processes and hosts, full disks and memories."""
