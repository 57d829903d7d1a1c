"""Compute times of LLM inference: models, operators, measured kernels, estimates."""
