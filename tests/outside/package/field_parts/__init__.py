"""Parts of somebody else's package: one for each point at which a user's own part can hang."""
