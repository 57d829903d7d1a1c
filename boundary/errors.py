"""Error of bad input, one for all packages."""


class InputError(ValueError):
    """Invalid input: the message names file, field, what was found and what was expected, in one line."""
