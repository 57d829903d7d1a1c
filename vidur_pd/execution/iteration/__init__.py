"""The price of an iteration: compute of aicb, and its collectives."""
