"""A module that is imported when something of it is first asked for."""

from importlib import import_module
from typing import Any


class Later:
    """Stands for a module whose import takes seconds, where most commands need nothing of it."""

    def __init__(self, name: str) -> None:
        """Import nothing yet."""
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """Return what the module has under this name."""
        return getattr(import_module(self._name), attribute)
