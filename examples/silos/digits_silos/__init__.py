"""Ten silos, one class of the digits each, and one network."""
