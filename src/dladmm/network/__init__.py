"""Networks as chains of blocks: built from torch modules or graphs, with input scaling and input dropout."""
