"""Comparisons with measurements and with the exact model, for ``vidur-pd validate``."""
