"""What ends a command with one line: bad input, and failures that are no fault of the program."""


class InputError(ValueError):
    """Invalid input: the message names file, field, what was found and what was expected, in one line."""

    exit_code = 2


class Failure(Exception):
    """Good input that cannot be carried out: a missing capability or measurement, flows that do not arrive."""

    exit_code = 1


class OutputError(Failure, OSError):
    """A file that could not be written, as on a full disk: the message names it and the reason, in one line."""
