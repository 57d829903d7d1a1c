"""Errors of bad input and of missing measurements."""


class InputError(ValueError):
    """Invalid input: the message names file, field, what was found and what was expected, in one line."""


class UnmeasuredShape(LookupError):
    """A shape lies outside the measured data and no estimate was allowed; names the nearest measured shape."""
