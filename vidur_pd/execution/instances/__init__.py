"""Instances: where they stand on the topology, and their ranks."""
