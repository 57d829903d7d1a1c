"""Operators of an iteration by layer kind, and the memory that an instance takes."""
