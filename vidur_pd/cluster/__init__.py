"""What happens among instances: routing, faults, and how many of them serve."""
