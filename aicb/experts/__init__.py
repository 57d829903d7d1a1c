"""Expert load: the choice of tokens, the placement of experts, the load of the slowest rank."""
