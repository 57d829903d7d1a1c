"""Planners by name."""
