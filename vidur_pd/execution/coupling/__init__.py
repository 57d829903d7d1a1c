"""Couplings of iterations with the network: who slows down whom."""
