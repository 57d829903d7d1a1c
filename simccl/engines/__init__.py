"""Engines: all-reduce kernels of inference engines, and DeepEP's dispatch and combine."""
