"""Runs a step: its output comes from the store if its version is there, else from its body; records and trackers are told which."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo.base.errors import PlainError
from grpo.settings.names import declared
from grpo.settings.tree import Settings
from steps import STEPS
from steps.job.resume import Job, origin_checkpoint, taken_over
from steps.names import CHAMPION
from steps.run.launch import launch_of
from steps.run.machine import Machine
from steps.run.outside import OUTSIDE
from steps.run.processes import RESUMABLE
from steps.run.records import Attempt, Runs, Status
from steps.run.step import OfRun, Step, StepOutput
from steps.run.store import Making, Store
from steps.run.terminal import TerminalSink, duration
from steps.run.time_left import seconds_left
from steps.run.versions import StepVersion, describe_code, step_version
from steps.run.work import Part, Work
from steps.track.find import NotFoundError, named_policy
from steps.track.trackers import sending

if TYPE_CHECKING:
    from steps.cards.live import LiveCard

_UNPLAYED: Final = "cannot be played"
"""Stands in a version for the hash of such a champion."""
_MAX_REASON: Final = 1_500
IN_LOG: Final = "the task's log has the message"
"""The end of a recorded reason that is not the message of a PlainError."""


def parts(job: Job, section: str) -> list[dict[str, int]]:
    """Return the parts of the fan-out over `boards` or over games of the `selection`; a resumed run has no boards to build."""
    settings = job["settings"]
    count = int(settings["resources"]["num_tasks"])
    if section == "boards":
        count = 1 if job["origin"] is not None else min(count, settings["boards"]["num_units"])
    return [{"number": number, "count": count} for number in range(count)]


def run(step: Step, flow: Any, parts: Sequence[StepOutput] = ()) -> StepOutput:
    """Return a step's output: the origin's, the store's if its version is there, or a new one.

    Args:
        step: the step.
        flow: has the run as `job`, the outputs of the step's inputs as `STEP_output` and, in a parallel task, its part as `input`.
        parts: of a step that joins parallel tasks, their outputs.
    """
    task = _Task(step, flow, parts)
    with task.recorded() as attempt:
        if (output := task.taken_over) is None:
            output = task.made()
        else:
            task.store.open(output)
        if output["reused"]:
            print(f"{step.name}: {_progress(step.name)}: reusing version {output['version'][:12]}", flush=True)
        attempt.end("finished", output=output)
        task.show(output)
    return output


class _Task:
    """A step of a run on this machine."""

    def __init__(self, step: Step, flow: Any, parts: Sequence[StepOutput]) -> None:
        self.step, self.parts = step, parts
        self.job: Job = flow.job
        self.machine = Machine.here()
        self.store = Store.of(self.machine)
        # The code of this task: a run that is resumed may have another than it was launched with.
        self.code = {**describe_code(), "fresh": self.job["code"].get("fresh", "")}
        self.settings = Settings.model_validate(self.job["settings"])
        self.taken_over = taken_over(self.job["origin"], step.name)
        given = getattr(flow, "input", None)
        self.part = Part(number=0, count=1) if given is None else Part(**given)
        self.inputs: dict[str, StepOutput] = {name: getattr(flow, f"{name}_output") for name in step.inputs}
        self.variant = step.variant(self.settings.policy.kind)
        self.module = import_module(self.variant.module)
        self.card = self._live_card() if self.machine.task else None
        self.terminal = TerminalSink(
            step.name, (*step.shows, *self.variant.shows), lambda text: print(text, flush=True), lambda: self._seconds_after
        )

    @cached_property
    def version(self) -> StepVersion:
        """The version of its output."""
        return self._version(self.incumbent[1])

    @cached_property
    def incumbent(self) -> tuple[Path | None, str]:
        """The registry's champion, whom the run's candidate has to beat, and what the version says of it; no folder where it is not played.

        Where this very step of an earlier run has made it, it is no opponent: the step's output is found again.
        """
        if OfRun.CHAMPION not in self.step.of_run:
            return None, ""
        try:
            named = named_policy(CHAMPION, self.machine, role=CHAMPION, preset=launch_of(self.job["settings"]).preset)
            made = None if named.run is None else named.run.output_of(self.step.name)
            if made is not None:
                label = str(self.store.manifest(made)["parts"]["inputs"][CHAMPION])
                if self._version(label).version == made["version"]:
                    return None, label
            found = named.fetch(self.machine)
        except NotFoundError:
            return None, ""
        except PlainError as error:
            print(f"WARNING: the registry's champion cannot be played, so it stays, unbeaten: {error}", flush=True)
            return None, _UNPLAYED
        return found.folder, found.weights_hash

    def made(self) -> StepOutput:
        """Return the output of its version, which the body makes if the store does not have it."""
        with self.store.making(self.step.name, self.version.version) as making:
            if making.output is None:
                left = self._seconds_left(self.step.name)
                estimate = "" if left is None else f"; the run takes about {duration(left)} more"
                print(f"{self.step.name}: {_progress(self.step.name)}{estimate}", flush=True)
                with making.filling({"parts": self.version.parts, "code": self.code}) as folder:
                    work = self.work(folder, making)
                    self.module.body(work)
                    self.terminal.finish()
                    work.write_history()
        assert making.output is not None
        return making.output

    def work(self, folder: Path, making: Making) -> Work:
        """Return what the body works with."""
        return Work(
            folder=folder,
            settings=declared(self.settings, self.step.reads_for(self.settings.policy.kind)),
            machine=self.machine,
            inputs={name: self.store.open(output) for name, output in self.inputs.items()},
            of_run=self.folders(),
            parts=[self.store.open(part) for part in self.parts],
            part=self.part,
            facts={"settings": self.version.parts["settings"], **self.version.parts["inputs"]},
            progress_folder=making.progress,
            listeners=(self.terminal, *([] if self.card is None else [self.card])),
            say=self.terminal.say,
            saved=making.save,
        )

    def folders(self) -> dict[OfRun, Path]:
        """Return the folders of the checkpoint and the champion, as far as the step takes them and they exist."""
        found = {OfRun.CHAMPION: self.incumbent[0]}
        if OfRun.CHECKPOINT in self.step.of_run and self.job["origin"] is not None:
            found[OfRun.CHECKPOINT] = origin_checkpoint(self.job["origin"], self.store)[0]
        return {name: folder for name, folder in found.items() if folder is not None}

    @contextmanager
    def recorded(self) -> Iterator[Attempt]:
        """Record the attempt and how it ends, while trackers are told of it."""
        part = f"{self.part.number + 1} of {self.part.count}" if self.part.count > 1 else ""
        # What it takes over keeps its version: the files that the origin was made from need not be on this machine.
        version = self.version.version if self.taken_over is None else self.taken_over["version"]
        attempt = Runs(self.store).begin(self.job["run"], self.step.name, part, version)
        with sending(self.machine, attempt):
            try:
                yield attempt
            except BaseException as error:
                status: Status = "killed" if isinstance(error, SystemExit) and error.code == RESUMABLE else "failed"
                attempt.end(status, error=_reason(error))
                if self.card is not None:
                    self.card.failed(_reason(error))
                raise

    def show(self, output: StepOutput) -> None:
        """Draw the card of the output."""
        if self.card is not None:
            # What was made just now has been verified where it was taken in.
            folder = self.store.open(output) if output["reused"] else self.store.folder(output["step"], output["version"])
            self.card.finished(folder, is_reused=output["reused"])

    def _seconds_left(self, step: str) -> float | None:
        """Return about how long the run still takes when a step begins."""
        run = Runs(self.store).get(self.job["run"])
        return None if run is None else seconds_left(run, step, self.job["usual"])

    @cached_property
    def _seconds_after(self) -> float | None:
        """About how long the run still takes when this step has ended."""
        return self._seconds_left(STEPS[STEPS.index(self.step.name) + 1])

    def _version(self, label: str) -> StepVersion:
        share = {} if self.part.count == 1 else {"part": self.part.number, "of": self.part.count}
        return step_version(
            self.step,
            self.settings.policy,
            settings=self.step.settings(self.settings) | share,
            inputs=dict(self._inputs(label)),
            code=self.code,
        )

    def _inputs(self, champion: str) -> Iterator[tuple[str, str]]:
        """Yield name -> hash of what the step takes in."""
        origin = self.job["origin"]
        yield from ((name, output["output_hash"]) for name, output in self.inputs.items())
        for outside in self.step.outside:
            yield from OUTSIDE[outside](self.settings, self.machine).items()
        of_run: dict[OfRun, Callable[[], str]] = {
            OfRun.CHECKPOINT: lambda: "" if origin is None else origin_checkpoint(origin, self.store)[1],
            OfRun.CHAMPION: lambda: champion,
            OfRun.ORIGIN: lambda: "" if origin is None else f"{origin['run']}/{origin['step']}",
            OfRun.VERSIONS: lambda: ", ".join(output["version"] for output in self.inputs.values()),
        }
        yield from ((name.value, of_run[name]()) for name in self.step.of_run)
        for number, part in enumerate(self.parts):
            if not self.step.joins:
                yield f"part {number}", part["output_hash"]
            else:  # How many tasks there were changes nothing.
                files: Mapping[str, str] = self.store.manifest(part)["files"]
                yield from ((name, digest) for name, digest in files.items() if fnmatch(name, self.step.joins))

    def _live_card(self) -> "LiveCard | None":
        """Return the card of a step that has one."""
        if (page := getattr(import_module(f"steps.{self.step.name}"), "card", None)) is None:
            return None
        from steps.cards.live import LiveCard  # It imports Metaflow, without which the steps work too.

        return LiveCard(self.step.name, page, self.job["settings"])


def _progress(step: str) -> str:
    """Return how far the run is, such as "step 5 of 11"."""
    names = STEPS[STEPS.index("start") + 1 : STEPS.index("end")]
    return f"step {names.index(step) + 1} of {len(names)}"


def _reason(error: BaseException) -> str:
    """Return an error's text for pages: the message of a PlainError; of others, which may hold secrets, only the type."""
    if isinstance(error, PlainError):
        return str(error)[:_MAX_REASON]
    if isinstance(error, SystemExit):
        return "ended by SIGTERM"
    return f"{type(error).__name__}: {IN_LOG}"
