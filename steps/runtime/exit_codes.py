"""The exit codes by which a task says whether another try may help."""

from typing import Final

NO_RETRY: Final = 202
"""Another try would end the same way: so it tells Metaflow."""
RESUMABLE: Final = 75
"""Another try, here or elsewhere, goes on from what was saved: EX_TEMPFAIL of sysexits.h."""
