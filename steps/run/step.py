"""Declaration of a pipeline step: `STEP` in the step's file.

- Version: hash of a step's name, code and packages, and of the values of its declared settings and inputs.
- Kind: `network` or `language` (`policy.kind`).
- Origin: the earlier run that `--resume-from` names; the new run begins with its checkpoint.
- Registry: MLflow's list of policies, such as `champion` (the best, to play) and `peak` (a checkpoint, to resume from).
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
    step: StepName
    version: VersionHash
    output_hash: Hash
    reused: bool  # The output existed already.


class Outside(StrEnum):
    """Inputs that no step computes."""

    ENGINE = "engine"
    DEVICE = "device"
    SOURCES = "sources"  # Sources of the dataset: game files, excluded positions, engine.
    BOOK = "book"
    MODEL = "model"  # Initial language model, before `pretrain`.
    DEFAULTS = "defaults"  # Default settings, which the report shows beside the run's.


class OfRun(StrEnum):
    """Facts of the run that are inputs of a step."""

    CHECKPOINT = "checkpoint"  # The origin's checkpoint.
    CHAMPION = "champion"  # The registry's champion, an opponent.
    ORIGIN = "origin"  # RUN/N: the origin and its checkpoint's GRPO step.
    VERSIONS = "versions"  # Versions of the outputs that `Step.inputs` names.


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    name: str  # Name of the file, which has `body` (computes the output) and `card` (draws it).
    says: str  # Sentence for trackers.
    reads: tuple[str, ...] = ()  # Sections and dotted names of settings. `body` gets no others.
    reads_kind: bool = False  # Also reads the section of the policy's kind, such as `[language]`.
    inputs: tuple[StepName, ...] = ()
    outside: tuple[Outside, ...] = ()
    of_run: tuple[OfRun, ...] = ()
    joins: str = ""  # Pattern (`fnmatch`) of the files in parallel tasks' outputs that this step joins.
    shows: tuple[str, ...] = ()  # Metrics in the terminal.
    pages: tuple[str, ...] = ()  # Files of the output in MLflow, if they exist.
    headlines: tuple[str, ...] = ()  # Metrics that MLflow shows at the run.
    resources: Literal["training", "games", "others"] = "others"  # Key of the settings `resources` (cores, memory, GPUs).
    is_inherited: bool = False  # A resumed run takes the origin's output, even if the code has changed.
    is_registered: bool = False  # The registry stores the output beside each peak.

    def __post_init__(self) -> None:
        unknown = [name for name in self.inputs if name not in STEPS] + unknown_settings(self.reads)
        if unknown:
            raise ValueError(f"the declaration of {self.name} names {', '.join(unknown)}: no step or setting is called so")

    def variant(self, kind: str) -> Variant:
        return PARTS[kind].variants.get(self.name) or Variant(module=f"steps.{self.name}")

    def reads_for(self, kind: str) -> tuple[str, ...]:
        section = KINDS[kind].section
        return (*self.reads, *([section] if self.reads_kind and section else []), *self.variant(kind).reads)

    def settings(self, settings: Settings) -> dict[str, Any]:
        return part_of(settings, self.reads_for(settings.policy.kind))


def registered_steps() -> tuple[str, ...]:
    # `start` and `end` have no `STEP`.
    return tuple(name for name in STEPS[1:-1] if step_of(name).is_registered)


def step_of(name: str) -> Step:
    step = import_module(f"steps.{name}").STEP
    assert isinstance(step, Step)
    return step
