"""Request-level simulation of LLM serving with prefill/decode disaggregation."""
