"""Measurement of an engine's host: stamps inside a running vLLM, the parts of its steps, a host file from them.

Importing this package imports neither torch nor vLLM; `stamping` is imported by the engine's own processes.
"""
