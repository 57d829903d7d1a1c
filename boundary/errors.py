"""Errors of what users hand in and get back, the same for all packages."""


class InputError(ValueError):
    """Invalid input: the message names file, field, what was found and what was expected, in one line."""


class OutputError(OSError):
    """A file that could not be written, as on a full disk; the message names it and the reason, in one line."""
