"""Error of missing measurements."""

from boundary.errors import Failure


class UnmeasuredShape(Failure, LookupError):
    """A shape lies outside the measured data and no estimate was allowed; names the nearest measured shape."""
