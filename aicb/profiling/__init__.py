"""Measurements of kernel times on the GPU of this host. The only part of the repository that uses torch.

Importing this package does not import torch; ``runner``, ``library`` and ``libraries`` do.
"""
