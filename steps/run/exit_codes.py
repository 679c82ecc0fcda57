"""Exit codes by which a task says whether a retry can help."""

from typing import Final

NO_RETRY: Final = 202
"""The error is not retryable; Metaflow does not retry a task that ends with this code."""
RESUMABLE: Final = 75
"""A retry, here or on another machine, resumes from the last checkpoint: EX_TEMPFAIL of sysexits.h."""
