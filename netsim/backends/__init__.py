"""Backends: the contract, and what carries flow graphs by it."""
