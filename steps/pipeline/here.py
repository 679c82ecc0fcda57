"""Where a step runs: its run, this machine, its store; and the hashes of what the step takes in."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.engine.identity import EngineIdentity, identify
from grpo.settings.tree import Settings
from steps.pipeline.job import Job, typed_settings
from steps.runtime.machine import Machine
from steps.step_io.spec import StepSpec
from steps.store.external_inputs import model_inputs, opening_inputs, source_inputs
from steps.store.outputs import StepOutput, Store
from steps.tracking.tracker import Tracker

if TYPE_CHECKING:
    import torch


class Here:
    """A run on this machine, as one of its steps meets it."""

    def __init__(self, job: Job) -> None:
        """Read the run's settings, and this machine's facts from the environment."""
        self.job = job
        self.settings: Settings = typed_settings(job["settings"])
        self.machine = Machine.here()
        self.store = Store.of(self.machine)

    @cached_property
    def engine(self) -> EngineIdentity:
        """The engine that this machine has."""
        return identify(self.machine.stockfish)

    @cached_property
    def tracker(self) -> Tracker:
        """The tracking store, which may be away."""
        return Tracker(self.machine)

    @property
    def device(self) -> "torch.device":
        """The device to compute on; torch is imported by the steps that ask."""
        from steps.runtime.device import torch_device

        return torch_device(self.machine)

    @property
    def device_facts(self) -> str:
        """What of the device decides the last bits of a sum."""
        from steps.runtime.device import device_facts

        return device_facts(self.machine)

    def open(self, output: StepOutput) -> Path:
        """Return the verified folder of an output."""
        return self.store.open(output)

    def inputs(self, spec: StepSpec, **outputs: StepOutput) -> dict[str, str]:
        """Return name -> hash of what a step takes in, for its version; what is known only later is added by the caller.

        Args:
            spec: names the inputs.
            outputs: of other steps, by the name that the step has for them.
        """
        found: dict[str, str] = {}
        for name in spec.inputs:
            if name in outputs:
                found[name] = outputs[name]["output_hash"]
            elif name == "engine":
                found[name] = str(self.engine)
            elif name == "device":
                found[name] = self.device_facts
            elif name == "sources":
                found |= source_inputs(self.settings, self.engine)
            elif name == "opening book":
                found |= opening_inputs(self.settings)
            elif name == "model":
                found |= model_inputs(self.settings)
        return found
