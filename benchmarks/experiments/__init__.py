"""The library's own experiments: TOML files in the format of the paper's, run by ``run.py``."""
