"""The error of a bad input."""


class InputError(Exception):
    """Something the user gave is wrong. The message says what, where, and what to do; the command exits with 2."""
