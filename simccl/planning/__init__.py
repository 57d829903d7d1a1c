"""Planning: cost model, choice, times, plans and proofs of collectives by the registered algorithms."""
