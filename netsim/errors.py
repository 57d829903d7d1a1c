"""Errors of misuse and of missing capabilities."""

from boundary.errors import Failure


class BackendError(ValueError):
    """A backend was used against its contract: a start in the past, an unknown node, use after close."""

    exit_code = 2


class NoPath(BackendError):
    """Links that are up leave no way between two nodes of a flow."""


class BackendUnavailable(Failure, RuntimeError):
    """The backend exists but cannot run here; the message says what it needs and how to get it."""
