"""Declaration of a pipeline step: `STEP` in the step's file, beside `body` and `card`.

- Version: hash of all that a step's output depends on. Equal versions share one stored output.
- Kind: `network` or `language`, the kind of the run's policy (`policy.kind`).
- Origin: the run whose checkpoint a resumed run begins with.
- Registry: list of policies in MLflow. Its `champion` is the policy to play, a `peak` the checkpoint to resume from.
"""

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
    """Identifies a step's output. Metaflow keeps this plain dict as an artifact."""

    step: StepName
    version: VersionHash
    output_hash: Hash
    reused: bool  # Whether the output existed already.


class Outside(StrEnum):
    """Inputs that no step computes; `steps.run.outside` hashes them."""

    ENGINE = "engine"
    DEVICE = "device"
    SOURCES = "sources"  # Game files, excluded positions, engine.
    BOOK = "book"
    MODEL = "model"  # Initial language model, before `pretrain`.
    DEFAULTS = "defaults"  # Default settings, which pages show.


class OfRun(StrEnum):
    """Facts of the run that can be inputs of a step."""

    CHECKPOINT = "checkpoint"  # The origin's checkpoint.
    CHAMPION = "champion"  # Registry's champion, the candidate's opponent.
    ORIGIN = "origin"  # RUN/STEP of the origin's checkpoint.
    VERSIONS = "versions"  # Versions of the outputs of `inputs`.


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A step's declaration. The version covers the values of declared settings and inputs, not the declaration."""

    name: str  # In flow, store and tracker; the file `NAME.py` has `body` (computes the output) and `card` (draws it).
    says: str  # Purpose, in one or two sentences.
    reads: tuple[str, ...] = ()  # Sections and dotted names of settings: only these can be read.
    reads_kind: bool = False  # Whether also the section of the policy's kind is read, such as `[language]`.
    inputs: tuple[StepName, ...] = ()  # Steps whose outputs are read.
    outside: tuple[Outside, ...] = ()
    of_run: tuple[OfRun, ...] = ()
    joins: str = ""  # Pattern of the parallel tasks' files that this step joins. The version has their hashes.
    shows: tuple[str, ...] = ()  # Metrics in the terminal.
    pages: tuple[str, ...] = ()  # Files of the output in MLflow, if they exist.
    headlines: tuple[str, ...] = ()  # Metrics that MLflow shows at the run, too, not only at the step.
    resources: Literal["training", "games", "others"] = "others"  # Row of `resources` in the settings, for AWS Batch.
    is_inherited: bool = False  # Whether a resumed run takes the origin's output, even if the code has changed.
    is_registered: bool = False  # Whether the registry stores the output with a peak, so any machine can resume from the peak.

    def __post_init__(self) -> None:
        unknown = [name for name in self.inputs if name not in STEPS] + unknown_settings(self.reads)
        if unknown:
            raise ValueError(f"the declaration of {self.name} names {', '.join(unknown)}: no step or setting is called so")

    def variant(self, kind: str) -> Variant:
        return PARTS[kind].variants.get(self.name) or Variant(module=f"steps.{self.name}")

    def reads_for(self, kind: str) -> tuple[str, ...]:
        """Return the sections and settings that the step reads for a kind of policy."""
        section = KINDS[kind].section
        return (*self.reads, *([section] if self.reads_kind and section else []), *self.variant(kind).reads)

    def settings(self, settings: Settings) -> dict[str, Any]:
        """Return the values of the settings that the step reads, as JSON data."""
        return part_of(settings, self.reads_for(settings.policy.kind))


def registered_steps() -> tuple[str, ...]:
    return tuple(name for name in STEPS[1:-1] if step_of(name).is_registered)


def step_of(name: str) -> Step:
    step = import_module(f"steps.{name}").STEP
    assert isinstance(step, Step)
    return step
