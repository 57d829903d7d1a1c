"""What deployments could do, in closed form, and which of them are worth running."""
