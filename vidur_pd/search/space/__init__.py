"""Spaces of configurations: what a file says, what a plan makes, and what is looked for in them."""
