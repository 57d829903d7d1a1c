"""Routing policies that look at more than the core's loads, one file each."""
