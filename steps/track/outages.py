"""What went wrong with a tracking store: an outage, which passes, or a refusal, which does not."""

import errno
import logging
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
_NOT_FROM_MLFLOW: Final = "API request to"
"""MLflow's message begins so when the response did not come from an MLflow server: a proxy's page, or no response."""
_TOO_LONG: Final = re.compile(r"value too long|Data too long|would be truncated", re.IGNORECASE)
"""A database's own words for a refusal, which MLflow passes on as BAD_REQUEST."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_FULL_DATABASE: Final = re.compile(r"database or disk is full|disk I/O error|readonly database")


class TrackingAwayError(PlainError, RuntimeError):
    """The tracking store does not answer, or cannot be written; the message has its address and the reason."""

    may_pass = True


class TrackingRefusedError(TrackingAwayError):
    """The tracking store has said no, or this machine lacks its driver: asking again does not help."""

    may_pass = False


class ArtifactError(PlainError, RuntimeError):
    """A file is not in the tracking store, or not the one that was stored; the message says which and why."""


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
    except TrackingAwayError:
        raise
    except (MlflowException, SQLAlchemyError, OSError, BotoCoreError, ClientError) as error:
        text = str(error)
        if full := _FULL_DATABASE.search(text):
            raise TrackingAwayError(f"the tracking store {store} cannot be written ({full[0]}): free disk space") from error
        if isinstance(error, OSError) and error.errno in _FULL:
            raise TrackingAwayError(f"the tracking store {store} cannot be written ({error.strerror}): free disk space") from error
        if _TOO_LONG.search(text) or (
            isinstance(error, MlflowException) and error.error_code in _REFUSALS and not text.startswith(_NOT_FROM_MLFLOW)
        ):
            raise TrackingRefusedError(f"the tracking store {store} refuses {what} ({first_line(error)})") from error
        raise TrackingAwayError(f"the tracking store {store} does not answer ({first_line(error)})") from error


def quiet_libraries() -> None:
    """Let libraries print no traceback of what is raised as well, and no steps of making a database."""
    for name, level in {"mlflow.store": logging.CRITICAL, "alembic": logging.WARNING, "sqlalchemy.pool": logging.CRITICAL}.items():
        logging.getLogger(name).setLevel(level)


def first_line(error: BaseException) -> str:
    """Return an error's first line without secrets of addresses; of a lost connection the system's reason, such as "Connection refused"."""
    found = re.search(r"(?:new connection:|resolve \S+) \(?\[Errno -?\d+\] ([^\"'()]+)", str(error))
    return found[1].strip() if found else without_secrets(next(iter(str(error).splitlines()), type(error).__name__))
