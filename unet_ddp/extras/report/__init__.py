"""The report of a run, one file with figures, curves and the worst images; and the comparison of runs."""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # or it reports on its font cache
