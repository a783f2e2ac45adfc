"""Flags that measure, compile or repeat a run: --profile, --compile, --deterministic."""
