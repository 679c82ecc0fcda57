"""The mark of errors that are no fault of the code."""


class PlainError(Exception):
    """What went wrong, where, why and how to mend it, is all in the message: a traceback would only hide it."""


class NonFiniteError(PlainError, RuntimeError):
    """A loss, gradient or weight is not finite, and going on would not mend it."""
