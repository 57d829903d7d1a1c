"""KV: hand-off of a request's KV cache between two instances."""
