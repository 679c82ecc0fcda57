"""Building blocks of the settings: frozen strict sections and numbers with ranges."""

from typing import TYPE_CHECKING, Annotated, Any, Final, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Names = Annotated[tuple[str, ...], Field(strict=False), BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]
"""One path or several."""
S3_SCHEME: Final = "s3://"
"""How the address of a file, a folder or a store on S3 begins."""


class UndeclaredSettingError(RuntimeError):
    """A step reads a setting that its declaration does not name, so that its version would not have it."""


class Section(BaseModel):
    """A part of the settings: frozen, strict about types, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Refuse a setting that `grpo.settings.names.declared` has taken out."""
            if name in type(self).model_fields:
                raise UndeclaredSettingError(f"the step reads {name} of {type(self).__name__}, which its declaration (Step.reads) lacks")
            return super().__getattr__(name)


def section_of(annotation: Any) -> type[Section] | None:
    """Return the section that a key of this type holds, also when it is optional; None for a plain value."""
    return next((one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, Section)), None)


def refuse_secret(address: str) -> None:
    """Raise ValueError, which does not show it, if an address may hold a secret: it would stand in settings, tags and logs."""
    parts = urlsplit(address)
    if "@" in parts.netloc or (parts.scheme in ("http", "https") and parts.query):
        raise ValueError(
            f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}: give this address without a user or a query (not shown here):"
            " they may hold a secret, which would stand in settings and logs; or download the file, and give its path"
        )
