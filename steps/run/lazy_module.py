"""Lazy import: a module that is imported when an attribute of it is first read."""

from importlib import import_module
from typing import Any


class LazyModule:
    """A placeholder for a module whose import takes seconds and which most commands do not need."""

    def __init__(self, name: str) -> None:
        """Import nothing yet."""
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """Import the module, if it is not imported yet, and return its attribute."""
        return getattr(import_module(self._name), attribute)
