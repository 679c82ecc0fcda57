"""Whether the packages of the extra `language` are there; known without importing them, which takes seconds."""

from importlib.util import find_spec
from typing import Final

from grpo.base.errors import PlainError

_PACKAGES: Final = ("transformers", "trl", "accelerate", "datasets")


class MissingExtraError(PlainError, ImportError):
    """A language model is asked for, and the packages for it are not installed."""


def require_language_extra() -> None:
    """Raise MissingExtraError naming what is missing."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise MissingExtraError(
            f'policy.kind = "language" needs packages that are not installed: {", ".join(missing)}; install the extra:'
            " pip install 'chess-grpo[language]'"
        )
