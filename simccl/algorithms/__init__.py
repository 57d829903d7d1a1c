"""Algorithms: each turns a collective on a communicator into planned flows."""
