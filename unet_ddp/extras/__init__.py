"""Parts that some use: found by name, or handed in by commands/; no room below it imports them."""
