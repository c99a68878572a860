"""Errors, status, history and file storage: the lowest layer, which knows nothing of networks."""
