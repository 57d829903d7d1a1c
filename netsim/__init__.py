"""Network simulation: topology + flow graph -> completion times."""
