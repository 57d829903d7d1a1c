"""Boundary between users and the four packages: what they hand in, what they get back, and how faults are worded."""
