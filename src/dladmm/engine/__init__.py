"""The iterate, the sweep, the modes and the theory's promises."""
