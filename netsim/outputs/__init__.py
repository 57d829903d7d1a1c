"""What packet-level runs can write: SimAI's text files and tables over time."""
