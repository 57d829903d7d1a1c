"""Collective communication: collective on a communicator -> flow graph, or a time."""
