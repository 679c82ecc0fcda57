"""Base classes of errors that are no bugs, shown to users without a traceback."""


class PlainError(Exception):
    """An error whose message says what failed, where, why, and how to fix it."""

    may_pass = False
    """Whether a retry, later or on another machine, may succeed unchanged."""


class NonFiniteError(PlainError, RuntimeError):
    """A loss, gradient or weight is NaN or infinite, and a retry would not help."""
