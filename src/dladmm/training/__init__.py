"""The loop around the engine: when to stop, what to keep, what to write."""
