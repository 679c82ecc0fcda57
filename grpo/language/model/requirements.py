"""Checks that the packages of the extra `language` are installed, without importing them (which takes seconds)."""

from importlib.util import find_spec
from typing import Final

from grpo.base.errors import PlainError

_PACKAGES: Final = ("transformers",)


class MissingExtraError(PlainError, ImportError):
    """The settings ask for a language model, but its packages are not installed."""


def require_language_extra() -> None:
    """Raise MissingExtraError that names the missing packages."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise MissingExtraError(
            f'policy.kind = "language" needs packages that are not installed: {", ".join(missing)}; install the extra:'
            " pip install '.[language]'"
        )
