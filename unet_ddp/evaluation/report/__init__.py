"""report.html: one file with figures, curves and the worst images."""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # or it reports on its font cache
