"""Measured times as functions of the shape: surfaces, kriging, volumes, and the estimates that come of them."""
