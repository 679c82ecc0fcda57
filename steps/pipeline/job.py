"""What every step of a run needs to know, as plain data that the flow passes on."""

from collections.abc import Mapping
from typing import Any, Final, NotRequired, TypedDict

from grpo.settings.tree import Settings
from steps.store.outputs import StepOutput

BEFORE_FINETUNE: Final = ("join_boards", "check_boards", "pretrain", "calibrate", "baseline")
"""Steps whose output a resumed run takes from its origin."""


class ResumeOrigin(TypedDict):
    """The run that a resumed run comes from."""

    name: str
    """What the user asked for, such as `peak` or RUN/STEP."""
    mlflow_run: str
    """The parent run."""
    metaflow_run: str
    policy_step: int
    """The checkpoint's step; 0 is the pretrained policy."""
    outputs: dict[str, StepOutput]
    """By step."""


class Job(TypedDict):
    """A run, as `start` describes it."""

    settings: dict[str, Any]
    code: dict[str, Any]
    """Commit, dirty flag and lock of the launching checkout."""
    metaflow_run: str
    mlflow_run: str
    is_fresh: bool
    """Recompute every output, even one that is in the store."""
    origin: ResumeOrigin | None
    """What the run resumes from."""
    step_seconds: NotRequired[dict[str, float]]
    """Step -> how long it took in this machine's latest run of the same preset."""
    checks: NotRequired[dict[str, str]]
    """What the preflight looked at -> what it found."""
    story: NotRequired[str]
    """What the parent run's page says below its progress (`steps.tracking.notes.head`)."""


def typed_settings(settings: Mapping[str, Any]) -> Settings:
    """Return a job's settings as they were read."""
    return Settings.model_validate(dict(settings))
