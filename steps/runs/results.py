"""A run's results: the document of its step `report`, or what its steps have logged until now; and the same results of two runs.

Results of two runs can be compared when their yardsticks are the same: the same opponent and rules, the same ladder, the same boards. A
score against the pretrained policy says nothing about a run that began with another one.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.base.files import MANIFEST, read_json
from grpo.statistics.intervals import Estimate, Unit, difference
from steps.runs.files import output_file, output_manifest
from steps.runs.index import TrackedRun
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say
from steps.step_io.names import RESULTS
from steps.step_io.results import Measurement, Results, estimate_of, measurements, read_results
from steps.tracking.outages import ArtifactError
from steps.tracking.tags import ENGINE


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultComparison:
    """The same result of two runs."""

    name: str
    first: Measurement | None
    second: Measurement | None
    apart: tuple[str, ...]
    """The parts of their yardsticks that differ or are unknown; empty when the two can be compared."""

    @property
    def is_one_measurement(self) -> bool:
        """Whether both come from the same output, which the later run reused."""
        return self.first is not None and self.second is not None and self.first["output"] == self.second["output"]

    @property
    def difference(self) -> Estimate | None:
        """First minus second with its interval, assuming independent samples; None if they cannot be compared."""
        if self.first is None or self.second is None or self.apart or self.is_one_measurement:
            return None
        return difference(estimate_of(self.first), estimate_of(self.second))

    @property
    def better(self) -> int:
        """Which is significantly better: 1 the first, 2 the second, 0 neither."""
        change = self.difference
        if change is None or self.first is None or change.low <= 0 <= change.high:
            return 0
        return 1 if (change.value > 0) == (self.first["unit"] != Unit.REGRET) else 2


def run_document(run: TrackedRun, machine: Machine) -> Results | None:
    """Return the document of a run, from this machine or from MLflow; None, said on stderr, if its files are nowhere to be had any more.

    None, too, if the run has not reached `report`. Raises TrackingAwayError; CorruptError; ResultsError when another version of the code
    wrote it.
    """
    step = run.output_of("report")
    try:
        if step is None or RESULTS not in output_manifest(machine, step.output)["files"]:
            return None  # Early versions wrote none.
        with output_file(machine, step.output, RESULTS) as path:
            return read_results(path)
    except ArtifactError as error:
        say(f"run {run.metaflow_run} without the {RESULTS} of its report: {error}", sys.stderr)
        return None


def run_measurements(run: TrackedRun, document: Results | None) -> list[Measurement]:
    """Return what was measured in a run, in the order of its steps: by its document, or by the metrics of a run that has none yet."""
    if document is not None:
        return document["measurements"]
    done = {step.name: step for step in run.steps if step.output_hash}
    return measurements(
        {name: step.metrics for name, step in done.items() if name != "finetune"},  # Its last checkpoint need not be the candidate.
        outputs={name: step.output_hash for name, step in done.items()},
        settings=run.settings,
        engine=run.tags.get(ENGINE),
        num_games={},
    )


def document_behind(folder: Path) -> Results | None:
    """Return the document of the newest run on this machine that has the output which contains this folder of a policy, or None."""
    manifests = {parent: read_json(parent / MANIFEST) for parent in (folder, *folder.parents) if (parent / MANIFEST).is_file()}
    for output, made in manifests.items():
        for path in sorted(output.parent.parent.glob(f"report/*/{RESULTS}"), key=lambda path: path.stat().st_mtime, reverse=True):
            if read_json(path)["outputs"].get(str(made["step"]), {}).get("output_hash") == made["output_hash"]:
                return read_results(path)
    return None


def compare_results(first: Sequence[Measurement], second: Sequence[Measurement]) -> list[ResultComparison]:
    """Pair up the results of two runs, in their order."""
    here, there = ({result["name"]: result for result in each} for each in (first, second))
    names = [*here, *(name for name in there if name not in here)]
    return [
        ResultComparison(name=name, first=here.get(name), second=there.get(name), apart=_apart(here.get(name), there.get(name)))
        for name in names
    ]


def _apart(first: Measurement | None, second: Measurement | None) -> tuple[str, ...]:
    if first is None or second is None:
        return ()
    one, other = first["yardstick"], second["yardstick"]
    return tuple(name for name in dict.fromkeys([*one, *other]) if one.get(name) is None or one.get(name) != other.get(name))
