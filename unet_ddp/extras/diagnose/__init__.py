"""Lines for errors that are no fault of the code, and where the time goes: --profile, --compile."""
