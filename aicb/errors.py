"""Error of missing measurements."""


class UnmeasuredShape(LookupError):
    """A shape lies outside the measured data and no estimate was allowed; names the nearest measured shape."""
