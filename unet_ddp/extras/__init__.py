"""Parts that some use: found by `plugins.find`, never imported by the core."""
