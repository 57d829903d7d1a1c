"""Formats of flow files, RoCE settings and results, ours and those of other simulators."""
