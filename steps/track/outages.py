"""What went wrong with a tracking store: an outage, which passes, or a refusal, which does not."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from grpo.base.errors import PlainError
from steps.run.machine import without_secrets

# Error codes that say no. All others may pass: 500, 429, missing credentials, a locked database (TEMPORARILY_UNAVAILABLE), and BAD_REQUEST,
# which MLflow returns for errors of its database.
_REFUSALS: Final = (
    "INVALID_PARAMETER_VALUE",
    "INVALID_STATE",
    "RESOURCE_DOES_NOT_EXIST",
    "RESOURCE_ALREADY_EXISTS",
    "RESOURCE_LIMIT_EXCEEDED",
)
_WRONG_ACCOUNT: Final = ("UNAUTHENTICATED", "PERMISSION_DENIED")
"""MLflow's words for the statuses 401 and 403; another account may be let in."""
_NOT_FROM_MLFLOW: Final = "API request to"
"""MLflow's message begins so when the response did not come from an MLflow server: a proxy's page, or no response."""
_TOO_LONG: Final = re.compile(r"value too long|Data too long|would be truncated", re.IGNORECASE)
"""A database's own words for a refusal, which MLflow passes on as BAD_REQUEST."""
_FULL: Final = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|Read-only file system|database or disk is full|disk I/O error"
    r"|readonly database"
)
_REASON: Final = re.compile(r"(?:new connection:|resolve \S+) \(?\[Errno -?\d+\] ([^\"'()]+)")
"""In the message of a lost connection: the system's reason, such as "Connection refused"."""


class TrackingAwayError(PlainError, RuntimeError):
    """The tracking store does not answer, or cannot be written; the message has its address and the reason."""

    may_pass = True


class TrackingRefusedError(TrackingAwayError):
    """The tracking store has said no: asking again does not help."""

    may_pass = False


@contextmanager
def failures_of(store: str, what: str) -> Iterator[None]:
    """Raise TrackingAwayError or TrackingRefusedError instead of what a library raises.

    Args:
        store: its address, as people may see it.
        what: what it is asked to take or to tell.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except PlainError:  # It says itself what failed: this code, or the store of outputs.
        raise
    except (MlflowException, SQLAlchemyError, OSError, ModuleNotFoundError, BotoCoreError, ClientError) as error:
        text = str(error)
        reason = _REASON.search(text)
        line = reason[1].strip() if reason else without_secrets(next(iter(text.splitlines()), type(error).__name__))
        if full := _FULL.search(text):
            raise TrackingAwayError(f"the tracking store {store} cannot be written ({full[0]}): free disk space") from error
        if isinstance(error, MlflowException) and error.error_code in _WRONG_ACCOUNT:
            remedy = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
            raise TrackingAwayError(f"the tracking store {store} does not accept the account ({error.error_code}): {remedy}") from error
        is_told = isinstance(error, MlflowException) and error.error_code in _REFUSALS and not text.startswith(_NOT_FROM_MLFLOW)
        if is_told or _TOO_LONG.search(text):
            raise TrackingRefusedError(f"the tracking store {store} refuses {what} ({line})") from error
        raise TrackingAwayError(f"the tracking store {store} does not answer ({line})") from error
