"""Operators of the parts of a layer; `aicb.operator_list` puts them together."""
