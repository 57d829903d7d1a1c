"""Estimated kernel times against measured and published ones."""
