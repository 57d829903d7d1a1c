"""Models, how an instance divides them, and the number formats it computes in."""
