"""report.html: one file with figures, curves and the worst images."""
