"""Base classes of errors that are no bugs, shown to users without a traceback."""


class PlainError(Exception):
    """An error whose message says what failed, where, why, and how to fix it."""

    may_pass = False
    """Whether the same call may succeed later or on another machine."""


class NonFiniteError(PlainError, RuntimeError):
    """A weight, loss or other number of the training is NaN or infinite."""
