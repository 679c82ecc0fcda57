"""What a step is, declared beside the body that computes it: `SPEC` of each module in `steps.bodies`."""

from dataclasses import dataclass
from typing import Any

from grpo.settings.roles import settings_read_by
from grpo.settings.tree import Settings
from grpo.settings.types import StepName


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSpec:
    """A step's name, what its version covers, and what people see of it.

    A declaration changes no output: the hash of a body's code leaves `SPEC` out, and what it names is in the version by value.
    """

    name: str
    """Of the step, in the flow, the store and the tracker."""
    body: str
    """The module that computes it: its code, and that of all it imports, is part of the version."""
    reads: StepName | None = None
    """Which settings: those whose role names this step as a reader (`grpo.settings.types.Role`); None for none."""
    inputs: tuple[str, ...] = ()
    """What it takes besides settings: outputs of other steps, `engine`, `device`, files. Their hashes are part of the version."""
    shown: tuple[str, ...] = ()
    """Metrics that the terminal prints."""
    axis: str = ""
    """What the steps of its records count, in the words of the terminal; empty where they count nothing."""
    published: tuple[str, ...] = ()
    """Files of its output that are logged to the tracker by themselves; those that are not there are passed over."""
    is_archived: bool = True
    """Whether the tracking store keeps the whole output; not worth its room where another step's output holds all of it."""
    resumes: bool = False
    """Whether the body, after a kill, resumes from its progress folder."""

    def settings(self, settings: Settings) -> dict[str, Any]:
        """Return the part of the settings that it reads, JSON-able: part of its version."""
        return {} if self.reads is None else settings_read_by(self.reads, settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSpan:
    """A step of the run, its tasks together, or one attempt of it that failed."""

    name: str
    num_tasks: int
    state: str
    """`finished`, `reused`, `failed` or `running`."""
    begin: float
    """Seconds since the run began."""
    end: float
