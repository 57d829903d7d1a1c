"""Failures of real transfers."""

from boundary.errors import Failure


class TransferFailure(Failure):
    """Flows could not be sent, or not be measured; the message says which rank found what."""
