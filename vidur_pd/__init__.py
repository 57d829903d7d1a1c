"""Request-level simulation of LLM serving with prefill/decode disaggregation."""

__version__ = "0.1.0"
