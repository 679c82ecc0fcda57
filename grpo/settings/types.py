"""What the parts of the settings are made of: frozen, strict sections, and numbers with their ranges."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Names = Annotated[tuple[str, ...], Field(strict=False), BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]
"""One name, or several."""


class Section(BaseModel):
    """A part of the tree: frozen, strict about types, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)
