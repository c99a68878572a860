"""The training loop, its input checks, checkpoints, model files and run folders."""
