"""Measurement of engines: stamps inside a running vLLM or SGLang, the parts of their steps, a host file from them.

Importing this package imports neither torch nor an engine; modules of stamps are imported by the engine's processes.
"""
