"""Sections of settings, and numbers with ranges."""

from typing import TYPE_CHECKING, Annotated, Any, Final, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Names = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(strict=False),
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
]
"""Paths; a single text is one path."""
S3_SCHEME: Final = "s3://"


class UndeclaredSettingError(RuntimeError):
    """A step reads a setting that `Step.reads` does not name."""


class Section(BaseModel):
    """Refuses unknown keys, wrong types, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    if not TYPE_CHECKING:  # With `__getattr__`, mypy would accept any attribute.

        def __getattr__(self, name: str) -> Any:
            # `grpo.settings.names.declared` removes undeclared settings.
            if name in type(self).model_fields:
                raise UndeclaredSettingError(f"the step reads {name} of {type(self).__name__}, which Step.reads does not declare")
            return super().__getattr__(name)


def section_of(annotation: Any) -> type[Section] | None:
    """Return the section class of an annotation, also of `Section | None`."""
    return next((one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, Section)), None)


def refuse_secret(address: str) -> None:
    """Raise ValueError if an address may contain a secret, in a user or a query."""
    parts = urlsplit(address)
    if "@" in parts.netloc or (parts.scheme in ("http", "https") and parts.query):
        raise ValueError(
            f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}: give this address without a user or a query (not shown here):"
            " settings and logs would show a secret in them; or download the file, and give its path"
        )
