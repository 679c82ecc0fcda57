"""The mark of errors that are no fault of the code."""


class PlainError(Exception):
    """What went wrong, where, why and how to mend it, is all in the message: a traceback would only hide it."""

    may_pass = False
    """Whether the same again, later or on another machine, may do better with nothing mended by hand."""


class NonFiniteError(PlainError, RuntimeError):
    """A loss, gradient or weight is not finite, and going on would not mend it."""
