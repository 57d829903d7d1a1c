"""Calibration: measured times of collectives, and corrections fitted to them."""
