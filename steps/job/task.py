"""Runs a step: takes its output from the store or computes it, and records the attempt.

- Task: a step of a run, or one part of a parallel step. An attempt is one try of a task.
- Version: hash of all that a step's output depends on.
- Origin: the run whose checkpoint a resumed run begins with.
- Champion: the best policy in the registry (MLflow), an opponent of the run's candidate.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatch
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo.base.errors import PlainError
from grpo.settings.names import declared
from grpo.settings.tree import Settings
from steps import STEPS
from steps.job.resume import Job, inherited_output, origin_checkpoint
from steps.names import CHAMPION
from steps.run.launch import launch_of
from steps.run.machine import Machine
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

_UNPLAYED: Final = "cannot be played"  # In versions, instead of a champion's hash.
_MAX_REASON: Final = 1_500  # Characters.
IN_LOG: Final = "the task's log has the message"  # Ends a recorded error that is not a PlainError.


def parts(job: Job, section: str) -> list[dict[str, int]]:
    """Return the arguments of `Part` for the parallel tasks of `build_boards` (section "boards") or `confirm` ("selection")."""
    settings = job["settings"]
    count = int(settings["resources"]["num_tasks"])
    if section == "boards":
        # A resumed run inherits the boards.
        count = 1 if job["origin"] is not None else min(count, settings["boards"]["num_units"])
    return [{"number": number, "count": count} for number in range(count)]


def run(step: Step, flow: Any, parts: Sequence[StepOutput] = ()) -> StepOutput:
    """Return a step's output: inherited from the origin, found in the store by its version, or computed.

    - `flow`: Metaflow's, with `job`, `NAME_output` of each input and, in a parallel task, `input` (arguments of `Part`)
    - `parts`: outputs of the parallel tasks that the step joins
    """
    task = _Task(step, flow, parts)
    with task.recorded() as attempt:
        if (output := task.inherited) is None:
            output = task.stored_or_computed()
        else:
            task.store.open(output)  # Verifies the output.
        if output["reused"]:
            print(f"{step.name}: {_progress(step.name)}: reusing version {output['version'][:12]}", flush=True)
        attempt.end("finished", output=output)
        task.show(output)
    return output


class _Task:
    def __init__(self, step: Step, flow: Any, parts: Sequence[StepOutput]) -> None:
        self.step, self.parts = step, parts
        self.job: Job = flow.job
        self.machine = Machine.here()
        self.store = Store.of(self.machine)
        # Describes this code, not the job's, because code may change before a `resume`.
        self.code = {**describe_code(), "fresh": self.job["code"].get("fresh", "")}
        self.settings = Settings.model_validate(self.job["settings"])
        # A step uses a GPU only if its `resources` ask for a GPU. A chess network's games are faster on all cores.
        if self.machine.device == "auto" and not getattr(self.settings.resources, step.resources).num_gpus:
            self.machine = replace(self.machine, device="cpu")
        self.inherited = inherited_output(self.job["origin"], step.name)
        part = getattr(flow, "input", None)
        self.part = Part(number=0, count=1) if part is None else Part(**part)
        self.inputs: dict[str, StepOutput] = {name: getattr(flow, f"{name}_output") for name in step.inputs}
        self.variant = step.variant(self.settings.policy.kind)
        self.module = import_module(self.variant.module)
        self.card = self._live_card() if self.machine.task else None
        self.terminal = TerminalSink(
            step.name, (*step.shows, *self.variant.shows), lambda text: print(text, flush=True), lambda: self._seconds_after
        )

    @cached_property
    def version(self) -> StepVersion:
        return self._version(self.champion[1])

    @cached_property
    def champion(self) -> tuple[Path | None, str]:
        """Folder of the registry's champion, or None if none is played; and the entry in the step's version.

        The entry is the weights' hash, `_UNPLAYED`, or "" without a champion. If the champion's run made this very output, the output keeps
        its entry, so the output is reused.
        """
        if OfRun.CHAMPION not in self.step.of_run:
            return None, ""
        try:
            named = named_policy(CHAMPION, self.machine, role=CHAMPION, preset=launch_of(self.job["settings"]).preset)
            if named.run is not None and (output := named.run.output_of(self.step.name)) is not None:
                entry = str(self.store.manifest(output)["parts"]["inputs"][CHAMPION])
                if self._version(entry).version == output["version"]:
                    return None, entry
            # Both import torch.
            from steps.common.policies.open import open_policy
            from steps.run.device import torch_device

            policy = named.fetch(self.machine)
            open_policy(policy.folder, torch_device(self.machine), settings=self.settings)  # Other code may have saved it.
        except NotFoundError:
            return None, ""
        except PlainError as error:
            print(f"WARNING: the registry's champion cannot be played, so it remains champion: {error}", flush=True)
            return None, _UNPLAYED
        return policy.folder, policy.weights_hash

    def stored_or_computed(self) -> StepOutput:
        with self.store.making(self.step.name, self.version.version) as making:
            if making.output is None:
                seconds = self._seconds_left(self.step.name)
                estimate = "" if seconds is None else f"; the run takes about {duration(seconds)} more"
                print(f"{self.step.name}: {_progress(self.step.name)}{estimate}", flush=True)
                with making.filling({"parts": self.version.parts, "code": self.code}) as folder:
                    work = self.work(folder, making)
                    self.module.body(work)
                    self.terminal.finish()
                    work.write_history()
        assert making.output is not None
        return making.output

    def work(self, folder: Path, making: Making) -> Work:
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
        folders = {OfRun.CHAMPION: self.champion[0]}
        if OfRun.CHECKPOINT in self.step.of_run and self.job["origin"] is not None:
            folders[OfRun.CHECKPOINT] = origin_checkpoint(self.job["origin"], self.store)[0]
        return {name: folder for name, folder in folders.items() if folder is not None}

    @contextmanager
    def recorded(self) -> Iterator[Attempt]:
        """Record the attempt's beginning and, after an error, its end."""
        part = f"{self.part.number + 1} of {self.part.count}" if self.part.count > 1 else ""
        # An inherited output keeps its version, because a new version needs files that this machine may lack.
        version = self.version.version if self.inherited is None else self.inherited["version"]
        attempt = Runs(self.store).begin(self.job["run"], self.step.name, part, version)
        with sending(self.machine, attempt):
            try:
                yield attempt
            except BaseException as error:  # Also SystemExit.
                status: Status = "killed" if isinstance(error, SystemExit) and error.code == RESUMABLE else "failed"
                attempt.end(status, error=_reason(error))
                if self.card is not None:
                    self.card.failed(_reason(error))
                raise

    def show(self, output: StepOutput) -> None:
        if self.card is not None:
            # `open` verifies a reused output; a new output is intact.
            folder = self.store.open(output) if output["reused"] else self.store.folder(output["step"], output["version"])
            self.card.finished(folder, is_reused=output["reused"])

    def _seconds_left(self, step: str) -> float | None:
        run = Runs(self.store).get(self.job["run"])
        return None if run is None else seconds_left(run, step, self.job["usual"])

    @cached_property
    def _seconds_after(self) -> float | None:
        return self._seconds_left(STEPS[STEPS.index(self.step.name) + 1])

    def _version(self, champion: str) -> StepVersion:
        share = {} if self.part.count == 1 else {"part": self.part.number, "of": self.part.count}
        return step_version(
            self.step,
            self.settings.policy,
            settings=self.step.settings(self.settings) | share,
            inputs=dict(self._inputs(champion)),
            code=self.code,
        )

    def _inputs(self, champion: str) -> Iterator[tuple[str, str]]:
        from steps.run.outside import OUTSIDE

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
            else:  # Hashes of files, because hashes of outputs depend on the number of tasks.
                files: Mapping[str, str] = self.store.manifest(part)["files"]
                yield from ((name, digest) for name, digest in files.items() if fnmatch(name, self.step.joins))

    def _live_card(self) -> "LiveCard | None":
        if (page := getattr(import_module(f"steps.{self.step.name}"), "card", None)) is None:
            return None
        from steps.cards.live import LiveCard

        return LiveCard(self.step.name, page, self.job["settings"])


def _progress(step: str) -> str:
    names = STEPS[STEPS.index("start") + 1 : STEPS.index("end")]
    return f"step {names.index(step) + 1} of {len(names)}"


def _reason(error: BaseException) -> str:
    """Only a PlainError's message is shown, because other messages may hold secrets."""
    if isinstance(error, PlainError):
        return str(error)[:_MAX_REASON]
    if isinstance(error, SystemExit):
        return "ended by SIGTERM"
    return f"{type(error).__name__}: {IN_LOG}"
