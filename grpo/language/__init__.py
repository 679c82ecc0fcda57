"""A language model as the policy; needs the extra `language` and is imported lazily."""

from importlib.util import find_spec

from grpo.base.errors import PlainError


class MissingExtraError(PlainError, ImportError):
    """The settings ask for a language model, but its packages are not installed."""


def require_language_extra() -> None:
    """Raise MissingExtraError when the package `transformers` is missing; does not import it, which takes seconds."""
    if find_spec("transformers") is None:
        raise MissingExtraError(
            "policy.kind = \"language\" needs packages that are not installed: transformers; install the extra: pip install '.[language]'"
        )
