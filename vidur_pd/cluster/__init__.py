"""Instances: where they stand on the topology, their ranks, and routing among them."""
