"""Base classes of user-facing errors: those that are not bugs and are shown without a traceback."""


class PlainError(Exception):
    """An error whose message says what failed, where, why and how to fix it, so that no traceback is shown."""

    may_pass = False
    """Whether a retry, later or on another machine, may succeed without anybody fixing anything."""


class NonFiniteError(PlainError, RuntimeError):
    """A loss, gradient or weight is NaN or infinite, and more training would not fix it."""
