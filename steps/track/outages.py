"""Errors of a tracking store (MLflow's server or database)."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from grpo.base.errors import PlainError
from steps.run.machine import without_secrets

# MLflow's codes of refusals, without BAD_REQUEST, which MLflow also uses for temporary errors of a database.
_REFUSALS: Final = (
    *("INVALID_PARAMETER_VALUE", "INVALID_STATE"),
    *("RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "RESOURCE_LIMIT_EXCEEDED"),
)
_WRONG_ACCOUNT: Final = ("UNAUTHENTICATED", "PERMISSION_DENIED")  # MLflow's codes for 401 and 403.
_NO_MLFLOW_ANSWER: Final = "API request to"  # Beginning of MLflow's message if another server answered, or none.
_STATUS: Final = re.compile(r"failed with error code (\d+)")
_TEMPORARY_STATUS: Final = ("408", "425", "429", "500", "502", "503", "504")  # A retry may succeed.
_BODY: Final = re.compile(r"Response body: '(.*)'", re.DOTALL)
_TAG: Final = re.compile(r"<(style|script|head).*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_MAX_CHARACTERS: Final = 200  # Longest quote in a message.
# If another server, such as a proxy, answers in JSON, MLflow's message lacks the HTTP status. These words then mark an outage.
_OUTAGE_WORDS: Final = re.compile(r"unavailable|time.?out|timed out|too many|internal server error", re.IGNORECASE)
_TLS: Final = re.compile(r"\[SSL: \w+\][^('\"]*")
_TUNNEL: Final = re.compile(r"Tunnel connection failed: (\d{3}[^'\")]*)")
_SCHEMES: Final = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks", "databricks-uc", "uc", "file")
_NO_DRIVER: Final = re.compile(r"No module named \S+|Can't load plugin: \S+|Invalid SQLite URL.*")
# Databases' refusals, which MLflow reports as BAD_REQUEST.
_TOO_LONG: Final = re.compile(r"value too long|Data too long|would be truncated", re.IGNORECASE)
# A full or read-only disk or database.
_NOT_WRITABLE: Final = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|Read-only file system|database or disk is full|disk I/O error"
    r"|readonly database"
)
# The system's reason for a failed connection, such as "Connection refused".
_REASON: Final = re.compile(r"(?:new connection:|resolve \S+) \(?\[Errno -?\d+\] ([^\"'()]+)")


class TrackingAwayError(PlainError, RuntimeError):
    """The tracking store does not answer or cannot be written."""

    may_pass = True


class TrackingRefusedError(TrackingAwayError):
    """The tracking store refuses the data."""

    may_pass = False


class WrongAddressError(TrackingAwayError):
    """The address or the account is wrong."""


def address_fault(address: str) -> str:
    """Return the address's fault and the remedy, or "" without a fault."""
    shown, scheme = repr(without_secrets(address)), address.partition("://")[0]
    give = (
        "give http://HOST:PORT of an MLflow server or sqlite:////PATH/mlflow.db, or unset MLFLOW_TRACKING_URI to use a file in"
        " CHESS_GRPO_HOME"
    )
    if address != address.strip():
        return f"{shown} is blank or has blanks at its ends: {give}"
    if address in ("databricks", "databricks-uc", "uc") or address.startswith("file:"):
        return ""
    if "://" not in address:
        is_host = re.fullmatch(r"[\w.-]+:\d+(/.*)?", address)
        return f"{shown} has no scheme: " + (f"give http://{address}" if is_host else give)
    if scheme.partition("+")[0].lower() not in _SCHEMES:
        return f"{shown} has an unknown scheme, {scheme}://: {give}"
    if scheme.lower() not in ("http", "https"):
        return ""
    try:
        parts = urlsplit(address)
        if not parts.hostname or parts.port == 0:
            return f"{shown} has {'port 0' if parts.hostname else 'no host'}: {give}"
    except ValueError as error:
        return f"{shown} is no address ({error}): {give}"
    if parts.fragment and "@" not in address:  # With an @, the # may belong to a password.
        return f"{shown} is the address of a page; give {without_secrets(address).rstrip('/')}"
    return ""


def proxy_of(address: str) -> str:
    """Return "the proxy URL of VARIABLE" if requests to the address use a proxy, else ""."""
    from requests.utils import get_environ_proxies, select_proxy

    if not address.startswith(("http://", "https://")) or not (proxy := select_proxy(address, get_environ_proxies(address))):
        return ""
    names = [name for scheme in (urlsplit(address).scheme, "all") for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")]
    return f"the proxy {without_secrets(proxy)} of {next((name for name in names if os.environ.get(name)), 'this system')}"


def _remedy(store: str, status: str, words: str, *, is_own: bool) -> str:
    """Return the remedy for a refused account. `is_own`: an MLflow server wrote the answer `words`."""
    if "Invalid Host header" in words:
        host = urlsplit(store).netloc
        return f"start the server with `mlflow server --allowed-hosts {host}`, or use a name that it allows"
    if (proxy := proxy_of(store)) and not is_own and status != "401":
        return f"the answer may come from {proxy}: add {urlsplit(store).hostname} to NO_PROXY"
    return "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, to an account with access"


def _wrong_address(store: str, error: Exception, text: str) -> str:
    """Return the fault of address or account and the remedy, or "" for other errors. `text`: the error's message."""
    if tls := _TLS.search(text):
        remedy = "give http:// if the server has no TLS, or set MLFLOW_TRACKING_SERVER_CERT_PATH to its certificate"
        return f"cannot be reached safely ({tls[0].strip()}): {remedy}"
    if tunnel := _TUNNEL.search(text):
        return f"is not reached: {proxy_of(store) or 'a proxy'} answers {tunnel[1].strip()}: add {urlsplit(store).hostname} to NO_PROXY"
    if driver := _NO_DRIVER.search(text):
        return f"cannot be opened ({driver[0]}): correct MLFLOW_TRACKING_URI, or install the database's driver"
    code, is_own = getattr(error, "error_code", ""), not text.startswith(_NO_MLFLOW_ANSWER)
    status, body = _STATUS.search(text), _BODY.search(text)
    number = status[1] if status else ""
    words = " ".join(_TAG.sub(" ", body[1] if body else text).split())[:_MAX_CHARACTERS]
    if code in _WRONG_ACCOUNT or number in ("401", "403", "407"):
        return f"does not accept the account ({number or code}: {words}): {_remedy(store, number or code, words, is_own=is_own)}"
    response = getattr(error, "json", None)  # Only RestException has `json`, the answer.
    if response is not None:
        is_foreign = "error_code" not in response and not _OUTAGE_WORDS.search(json.dumps(response))
    else:
        is_foreign = not is_own and body is not None and number not in _TEMPORARY_STATUS
    if not is_foreign:
        return ""
    through = f", through {proxy}" if (proxy := proxy_of(store)) else ""
    return f"answers, but not as an MLflow server does{through} ({f'{number}: ' * bool(number)}{words}): correct MLFLOW_TRACKING_URI"


@contextmanager
def failures_of(store: str, what: str) -> Iterator[None]:
    """Turn errors of MLflow and its libraries into this module's errors.

    `store`: address without secrets. `what`: the data, as in "refuses {what}".
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except PlainError:
        raise
    except (MlflowException, SQLAlchemyError, OSError, ModuleNotFoundError, BotoCoreError, ClientError) as error:
        text = str(error)
        reason = _REASON.search(text)
        line = reason[1].strip() if reason else without_secrets(next(iter(text.splitlines()), type(error).__name__))
        if cause := _NOT_WRITABLE.search(text):
            remedy = "free disk space, or make the store writable"
            raise TrackingAwayError(f"the tracking store {store} cannot be written ({cause[0]}): {remedy}") from error
        if isinstance(error, (MlflowException, SQLAlchemyError, ModuleNotFoundError)) and (wrong := _wrong_address(store, error, text)):
            raise WrongAddressError(f"the tracking store {store} {wrong}") from error
        is_refusal = isinstance(error, MlflowException) and error.error_code in _REFUSALS and not text.startswith(_NO_MLFLOW_ANSWER)
        if is_refusal or _TOO_LONG.search(text):
            raise TrackingRefusedError(f"the tracking store {store} refuses {what} ({line})") from error
        through = f", through {proxy}" if (proxy := proxy_of(store)) else ""
        raise TrackingAwayError(f"the tracking store {store} does not answer ({line}{through})") from error
