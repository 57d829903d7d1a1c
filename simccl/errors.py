"""Errors of bad input and of broken plans."""

from boundary.errors import Failure, InputError


class UnsupportedTopology(InputError):
    """The cost model has no values for this GPU or arrangement of ranks; the message names what it knows."""


class PlanError(Failure, AssertionError):
    """A plan is not a correct execution of its collective: data is missing, counted twice or unordered."""
