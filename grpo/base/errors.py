"""Base classes of errors that users see without a traceback."""


class PlainError(Exception):
    """An error whose message says what failed, where, why, and how to fix it."""

    may_pass = False
    """Whether a retry, or another machine, may succeed."""


class NonFiniteError(PlainError, RuntimeError):
    """A number of the training is NaN or infinite."""
