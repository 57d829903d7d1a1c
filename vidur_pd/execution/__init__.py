"""The execution of iterations: their compute, their collectives, and the network they meet."""
