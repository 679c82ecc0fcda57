"""What a step is, declared in the step's own file beside its body and its card."""

from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any, Literal

from pydantic import AfterValidator
from typing_extensions import TypedDict

from grpo.base.door import STRICT, Hash, VersionHash
from grpo.settings.kinds import KINDS
from grpo.settings.names import part_of, unknown_settings
from grpo.settings.tree import Settings
from steps import STEPS
from steps.run.kinds import PARTS, Variant


def _of_pipeline(name: str) -> str:
    if name not in STEPS:
        raise ValueError("not a step of the pipeline")
    return name


StepName = Annotated[str, AfterValidator(_of_pipeline)]
"""Name of a step of the pipeline."""


@STRICT
class StepOutput(TypedDict):
    """Identifies a step's output: plain data, which the flow passes on."""

    step: StepName
    version: VersionHash
    output_hash: Hash
    reused: bool
    """Whether the store already had it."""


class Outside(StrEnum):
    """Dependencies of steps that no step makes; `steps.run.outside` has the hashes."""

    ENGINE = "engine"
    DEVICE = "device"
    SOURCES = "sources"
    """Files of games, excluded positions, and the engine that plays and labels."""
    BOOK = "book"
    MODEL = "model"
    """The language model that imitation begins with."""
    DEFAULTS = "defaults"
    """Defaults of the settings, beside which pages show a run's settings."""


class OfRun(StrEnum):
    """Things that a step can take from its run."""

    CHECKPOINT = "checkpoint"
    """The checkpoint that the run resumes from."""
    CHAMPION = "champion"
    """The registry's champion, the candidate's opponent."""
    ORIGIN = "origin"
    """RUN/STEP that the run resumes from."""
    VERSIONS = "versions"
    """The versions of the inputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A step's name, what its version covers, and what people see of it.

    A declaration changes no output: the hash of the code leaves it out, and what it names is in the version by value.
    """

    name: str
    """Of the step, in the flow, the store and the tracker, and of its file: whose `body` computes the output, whose `card` draws it."""
    says: str
    """What it does, in one or two sentences."""
    reads: tuple[str, ...] = ()
    """The settings that it reads: sections, or dotted names of single ones. They are part of its version, and others are not."""
    reads_kind: bool = False
    """Whether it also reads the section of the policy's kind (`grpo.settings.kinds`), such as `[language]`."""
    inputs: tuple[StepName, ...] = ()
    """The steps whose outputs it reads."""
    outside: tuple[Outside, ...] = ()
    """Dependencies that no step makes."""
    of_run: tuple[OfRun, ...] = ()
    """Things that it takes from its run."""
    joins: str = ""
    """Pattern of the files of parallel tasks that it joins: their hashes count, and not how many tasks there were."""
    shows: tuple[str, ...] = ()
    """Metrics that the terminal prints."""
    pages: tuple[str, ...] = ()
    """Files of its output that people look at in MLflow; those that are not there are passed over."""
    headlines: tuple[str, ...] = ()
    """Metrics that the whole run has in MLflow, too."""
    resources: Literal["training", "games", "others"] = "others"
    """Row of `resources` in the settings: what a task of it needs on AWS Batch."""
    is_inherited: bool = False
    """Whether a resumed run takes the output from its origin, whichever code the origin had."""
    is_registered: bool = False
    """Whether the output is registered with a peak, so that a run on another machine can resume from the peak."""

    def __post_init__(self) -> None:
        """Refuse names that do not exist, when the declaration is imported."""
        unknown = [name for name in self.inputs if name not in STEPS] + unknown_settings(self.reads)
        if unknown:
            raise ValueError(f"the declaration of {self.name} names {', '.join(unknown)}: no step or setting is called so")

    def variant(self, kind: str) -> Variant:
        """Return the step's variant for a kind of policy."""
        return PARTS[kind].variants.get(self.name) or Variant(module=f"steps.{self.name}")

    def reads_for(self, kind: str) -> tuple[str, ...]:
        """Return all sections and settings that the step reads for a kind of policy."""
        section = KINDS[kind].section
        return (*self.reads, *([section] if self.reads_kind and section else []), *self.variant(kind).reads)

    def settings(self, settings: Settings) -> dict[str, Any]:
        """Return the part of the settings that it reads, JSON-able: part of its version."""
        return part_of(settings, self.reads_for(settings.policy.kind))


def registered_steps() -> tuple[str, ...]:
    """Return the steps whose outputs are registered with a peak."""
    return tuple(name for name in STEPS[1:-1] if step_of(name).is_registered)


def step_of(name: str) -> Step:
    """Return a step's declaration; imports its file."""
    step = import_module(f"steps.{name}").STEP
    assert isinstance(step, Step)
    return step
