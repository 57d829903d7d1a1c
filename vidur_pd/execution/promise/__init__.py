"""What deployments could do, in closed form."""
