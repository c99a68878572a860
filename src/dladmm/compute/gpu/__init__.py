"""CUDA code, and how it is compiled and launched."""
