"""Building blocks of the settings: frozen strict sections, numbers with ranges, and the role of a setting in the pipeline."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Names = Annotated[tuple[str, ...], Field(strict=False), BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]
"""One path or several."""

StepName = Literal["build_boards", "check_boards", "pretrain", "calibrate", "baseline", "finetune", "select"]
PolicyKindName = Literal["network", "language"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """What a setting means for versions, resuming, run comparisons and the model card; `grpo.settings.roles` looks it up by dotted name.

    Write it as `Annotated[..., Role(...)]` where a setting differs from its section. None inherits the section's value.
    """

    read_by: tuple[StepName, ...] | None = None
    """The steps that read the value: it is part of their versions, and of no others. A file counts by its content, not by its path."""
    only_with: PolicyKindName | None = None
    """The only kind of policy for which those steps read it; None at the top level is every kind."""
    may_change_on_resume: bool | None = None
    """Whether a resumed run may use another value than its origin."""
    is_compared: bool | None = None
    """Whether the value is logged as a parameter for comparing runs."""
    is_main: bool = False
    """Whether the model card shows the value even when it is the default; not inherited."""


class Section(BaseModel):
    """A part of the settings: frozen, strict about types, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


def section_of(annotation: Any) -> type[Section] | None:
    """Return the section that a key of this type holds, also when it is optional; None for a plain value."""
    return next((one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, Section)), None)
