"""Outages of the MLflow server: which errors are retryable, and how long to wait."""

import errno
import re
from dataclasses import dataclass
from typing import Final

from grpo.base.errors import PlainError
from grpo.base.files import StorageError
from steps.runtime.machine import without_secrets

# Error codes that are not retryable. All others are: 500, 429, missing credentials, a locked database (TEMPORARILY_UNAVAILABLE), and
# BAD_REQUEST, which MLflow returns for errors of its database.
_REFUSALS: Final = (
    "INVALID_PARAMETER_VALUE",
    "INVALID_STATE",
    "RESOURCE_DOES_NOT_EXIST",
    "RESOURCE_ALREADY_EXISTS",
    "RESOURCE_LIMIT_EXCEEDED",
)
_NOT_FROM_MLFLOW: Final = "API request to"
"""MLflow's message begins so when the response did not come from an MLflow server: a proxy's page, or no response."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_FULL_DATABASE: Final = "database or disk is full"


class TrackingAwayError(PlainError, RuntimeError):
    """The tracking store does not answer, and without it there is no going on; the message has its address and the reason."""

    may_pass = True


class TrackingRefusedError(TrackingAwayError):
    """The tracking store rejects the question, or this machine lacks its driver: asking again does not help."""

    may_pass = False


class ArtifactError(PlainError, RuntimeError):
    """A file is not in the tracking store or cannot be downloaded; the message says which and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Intervals and time-outs for the tracking store, in seconds; they are short, because the journal loses nothing."""

    between_deliveries: float = 5.0
    """Interval of deliveries while the step runs; the step never waits for them."""
    after_outage: float = 15.0
    """Wait before a retry while the step runs; doubled after each further outage, up to `longest`."""
    longest: float = 300.0
    at_end: float = 30.0
    """Time-out for the last delivery of a step that succeeded."""
    at_failure: float = 5.0
    """Time-out for the last delivery of a step that failed, which delays its exit."""
    per_mebibyte: float = 0.2
    """Added to the time-out per MiB of artifacts."""
    between_tries: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Waits between retries of the last delivery, if the store answered until then."""
    between_asks: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    """Waits between retries of a query whose answer the step needs."""


def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions that a call of the tracking store may raise; imported lazily, after a failure."""
    from botocore.exceptions import BotoCoreError, ClientError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError, TrackingAwayError, BotoCoreError, ClientError


def is_refusal(error: Exception) -> bool:
    """Return whether the store has rejected the call for good, so that a retry cannot help.

    Raises StorageError when a local store's disk is full, which is not an outage.
    """
    from mlflow.exceptions import MlflowException

    is_full_database = _FULL_DATABASE in str(error)
    if is_full_database or (isinstance(error, OSError) and error.errno in _FULL):
        why = _FULL_DATABASE if is_full_database else first_line(error)  # SQLAlchemy's message may begin with the SQL statement.
        raise StorageError(f"the tracking store cannot be written ({why}): free disk space, then run `resume`") from error
    return isinstance(error, MlflowException) and error.error_code in _REFUSALS and not str(error).startswith(_NOT_FROM_MLFLOW)


def is_absence(error: Exception) -> bool:
    """Return whether the error says that there is no such file."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(error, FileNotFoundError) or status == 404 or is_refusal(error)


def first_line(error: BaseException) -> str:
    """Return an error's first line without secrets of addresses; of a lost connection the system's reason, such as "Connection refused"."""
    found = re.search(r"(?:new connection:|resolve \S+) \(?\[Errno -?\d+\] ([^\"'()]+)", str(error))
    return found[1].strip() if found else without_secrets(next(iter(str(error).splitlines()), type(error).__name__))
