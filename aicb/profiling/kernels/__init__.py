"""Triton kernels of our own, for operations whose engine kernels are compiled from Python or need a whole engine."""
