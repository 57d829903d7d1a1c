"""Formats: files of times, plans, workloads and bus bandwidths."""
