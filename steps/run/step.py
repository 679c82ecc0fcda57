"""Declaration of a step: the constant `STEP` in the step's own file, beside `body` and `card`."""

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


def _checked_step(name: str) -> str:
    if name not in STEPS:
        raise ValueError("not a step of the pipeline")
    return name


StepName = Annotated[str, AfterValidator(_checked_step)]


@STRICT
class StepOutput(TypedDict):
    """Identifies a step's output. Plain data: Metaflow stores it as an artifact."""

    step: StepName
    version: VersionHash
    output_hash: Hash
    reused: bool  # Whether the store already had the output.


class Outside(StrEnum):
    """Dependencies that no step makes; `steps.run.outside` hashes them."""

    ENGINE = "engine"
    DEVICE = "device"
    SOURCES = "sources"  # Files of games, excluded positions, and the engine that plays and labels.
    BOOK = "book"
    MODEL = "model"  # The language model that imitation begins with.
    DEFAULTS = "defaults"  # Default settings, which pages show beside a run's settings.


class OfRun(StrEnum):
    """Facts of the run that a step can take."""

    CHECKPOINT = "checkpoint"  # The checkpoint that the run resumes from.
    CHAMPION = "champion"  # The registry's champion, the candidate's opponent.
    ORIGIN = "origin"  # RUN/STEP of the checkpoint that the run resumes from.
    VERSIONS = "versions"  # Versions of the inputs.


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A step's name, what its version covers, and what terminal, pages and MLflow show of the step.

    The hash of the code leaves the declaration out. The version has the values of the settings, inputs and facts that it names.
    """

    name: str  # Name in flow, store and tracker, and of the file with `body` (computes the output) and `card` (draws it).
    says: str  # What the step does, in one or two sentences.
    reads: tuple[str, ...] = ()  # Sections and dotted names of settings; no other setting is in the version or can be read.
    reads_kind: bool = False  # Whether the step also reads the section of the policy's kind, such as `[language]`.
    inputs: tuple[StepName, ...] = ()  # Steps whose outputs the step reads.
    outside: tuple[Outside, ...] = ()
    of_run: tuple[OfRun, ...] = ()
    joins: str = ""  # Pattern of the joined files of parallel tasks: the version has their hashes, not the number of tasks.
    shows: tuple[str, ...] = ()  # Metrics that the terminal prints.
    pages: tuple[str, ...] = ()  # Files of the output that MLflow shows; missing files are skipped.
    headlines: tuple[str, ...] = ()  # Metrics that MLflow also shows for the complete run.
    resources: Literal["training", "games", "others"] = "others"  # Row of the settings' `resources`: needs of a task on AWS Batch.
    is_inherited: bool = False  # Whether a resumed run takes the output from its origin, whatever code the origin had.
    is_registered: bool = False  # Whether a peak is registered with the output, so that another machine can resume from the peak.

    def __post_init__(self) -> None:
        unknown = [name for name in self.inputs if name not in STEPS] + unknown_settings(self.reads)
        if unknown:
            raise ValueError(f"the declaration of {self.name} names {', '.join(unknown)}: no step or setting is called so")

    def variant(self, kind: str) -> Variant:
        return PARTS[kind].variants.get(self.name) or Variant(module=f"steps.{self.name}")

    def reads_for(self, kind: str) -> tuple[str, ...]:
        """Return all sections and dotted names of settings that the step reads for a kind of policy."""
        section = KINDS[kind].section
        return (*self.reads, *([section] if self.reads_kind and section else []), *self.variant(kind).reads)

    def settings(self, settings: Settings) -> dict[str, Any]:
        """Return the settings that the step reads, JSON-able; part of the version."""
        return part_of(settings, self.reads_for(settings.policy.kind))


def registered_steps() -> tuple[str, ...]:
    return tuple(name for name in STEPS[1:-1] if step_of(name).is_registered)


def step_of(name: str) -> Step:
    """Import a step's file and return its declaration."""
    step = import_module(f"steps.{name}").STEP
    assert isinstance(step, Step)
    return step
