"""Plans: flows between ranks, what they must deliver, and their flow graph."""
