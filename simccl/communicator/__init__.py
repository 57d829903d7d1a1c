"""Communicators: GPU types, generations, and which ranks run where."""
