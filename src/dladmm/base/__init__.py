"""The ground: errors, status, history, storage. Nothing here knows of networks."""
