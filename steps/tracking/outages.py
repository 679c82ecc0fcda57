"""When a tracking store counts as away: it does not answer, or not in a way that another try would not mend."""

import errno
import re
from dataclasses import dataclass
from typing import Final

from grpo.base.errors import PlainError
from grpo.base.files import StorageError

# What asking again would not change. All else can: 500, 429, a key that was forgotten, a locked database (TEMPORARILY_UNAVAILABLE), and
# BAD_REQUEST, by which MLflow tells of errors of its database.
_REFUSALS: Final = (
    "INVALID_PARAMETER_VALUE",
    "INVALID_STATE",
    "RESOURCE_DOES_NOT_EXIST",
    "RESOURCE_ALREADY_EXISTS",
    "RESOURCE_LIMIT_EXCEEDED",
)
_NOT_FROM_MLFLOW: Final = "API request to"
"""So begins MLflow's message when the answer, whatever its status, was none of an MLflow server: a proxy's page, or none at all."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_FULL_DATABASE: Final = "database or disk is full"


class TrackingAwayError(PlainError, RuntimeError):
    """The tracking store does not answer, and without it there is no going on; the message says where it should be and why it is not."""

    may_pass = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long a step waits for the tracking store, in seconds: never long, for what it has to say is kept."""

    between_deliveries: float = 5.0
    """While the step works. Deliveries are made beside the work, which never waits for them."""
    after_outage: float = 15.0
    """Until it is tried again, while the step works; doubled after each further outage, up to `longest`."""
    longest: float = 300.0
    at_end: float = 30.0
    """For all that is still to be delivered when a step has ended well."""
    at_failure: float = 5.0
    """The same when it has not: whoever ends a process waits for it."""
    per_mebibyte: float = 0.2
    """More for the files among it."""
    between_tries: tuple[float, ...] = (0.5, 1.0, 2.0)
    """At the end, when it answered until then."""
    between_asks: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    """Where something must be known to go on."""


def failures() -> tuple[type[Exception], ...]:
    """Return the errors that a call of the tracking store may end in; they are imported only here, when one has failed."""
    from botocore.exceptions import BotoCoreError, ClientError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError, TrackingAwayError, BotoCoreError, ClientError


def is_refusal(error: Exception) -> bool:
    """Return whether the store has answered, and would answer so again.

    Raises StorageError when it is embedded and its disk is full, which is no outage: the step's own disk it is, or one like it.
    """
    from mlflow.exceptions import MlflowException

    is_full_database = _FULL_DATABASE in str(error)
    if is_full_database or (isinstance(error, OSError) and error.errno in _FULL):
        why = _FULL_DATABASE if is_full_database else first_line(error)  # SQLAlchemy may say first what it was about to do.
        raise StorageError(f"the tracking store cannot be written ({why}): make room on its disk, and run `resume`") from error
    return isinstance(error, MlflowException) and error.error_code in _REFUSALS and not str(error).startswith(_NOT_FROM_MLFLOW)


def is_absence(error: Exception) -> bool:
    """Return whether this is the answer that there is no such file."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(error, FileNotFoundError) or status == 404 or is_refusal(error)


def in_short(error: BaseException) -> str:
    """Return why nobody answers, without the address and the ways to it, which stand in front of that; else what the error says first."""
    found = re.search(r"\[Errno -?\d+\] ([^\"'()]+)", str(error))
    return found[1].strip() if found else first_line(error)


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    return next(iter(str(error).splitlines()), type(error).__name__)
