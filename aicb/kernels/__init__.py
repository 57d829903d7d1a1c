"""Kernels: one file each for shape, FLOPs and bytes, table columns, times and profile points; `registry` finds them."""
