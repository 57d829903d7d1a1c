"""How tokens choose experts, where experts live, and what the slowest rank computes."""
