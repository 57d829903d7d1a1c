"""What a run comes to, in one sentence: whether it meets its objectives, by how much, and what limits it."""
