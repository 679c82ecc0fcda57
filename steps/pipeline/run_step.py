"""Runs a step: its output comes from the store if its version is there, else from its body; the tracker logs which."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.base.files import CorruptError
from steps.pipeline.job import BEFORE_FINETUNE, Job, ResumeOrigin
from steps.pipeline.make_output import make_output
from steps.runs.files import fetch_output, output_manifest
from steps.runtime.machine import Machine
from steps.step_io.spec import StepSpec
from steps.step_io.terminal import TerminalSink, time_text
from steps.step_io.work import Sink, Watcher, Work, read_history
from steps.store.outputs import StepOutput, Store
from steps.store.versions import StepVersion, step_version
from steps.tracking.child_run import ChildRun
from steps.tracking.step_notes import STEP_NOTES, step_note
from steps.tracking.tracker import Tracker


def run_step(
    job: Job,
    machine: Machine,
    spec: StepSpec,
    *,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
    work: Callable[[Work], None],
    sinks: Sequence[Sink] = (),
    watcher: Watcher | None = None,
    publish: Callable[[Path, ChildRun], None] | None = None,
    part: str = "",
) -> StepOutput:
    """Return a step's output: the origin's, the store's if its version is there, or a new one; log to the tracker which.

    The tracking store has the whole output too, once, so that other machines can resume from it.

    Args:
        job: the run.
        machine: this machine.
        spec: the step.
        settings: the part of the settings that the body reads.
        inputs: hashes of what it takes in.
        work: the body; fills the folder of its `Work`.
        sinks: what else logs the records.
        watcher: follows the records while the body works.
        publish: logs what is not a file of `spec.published`, after the output was archived.
        part: which of the step's parallel tasks this is, from `part_of`; empty for a step of one task.
    """
    step = spec.name
    store, tracker = Store.of(machine), Tracker(machine)
    version = step_version(spec, settings=settings, inputs=inputs, code=job["code"])
    tags = code_tags(job["code"]) | {"metaflow.run": job["metaflow_run"], "metaflow.step": step}
    with tracker.child(job["mlflow_run"], step, tags, job.get("story", ""), job["settings"], part=part) as child:
        # What an earlier attempt of this task has computed is fresh.
        is_fresh = job["is_fresh"] and machine.attempt == 0
        found = _found(job, machine, store, version, is_fresh=is_fresh)
        if found is None:
            print(f"{step}: {_overall(step, job.get('step_seconds', {}))}", flush=True)
            found = make_output(
                store,
                step,
                version.version,
                facts={"parts": version.parts, "code": job["code"]},
                body=work,
                resumes=spec.resumes,
                is_fresh=is_fresh,
                sinks=(child, *sinks),
                terminal=TerminalSink(step, spec.shown, lambda text: print(text, flush=True), axis=spec.axis),
                watcher=watcher,
            )
        else:
            print(f"{step}: {_count(step)}: reusing version {found['version'][:12]}, output {found['output_hash'][:12]}", flush=True)
            for record in read_history(store.folder(step, found["version"])):
                child.log(record)
            if spec.resumes:
                store.forget_progress(step, found["version"])
        folder = store.folder(step, found["version"])
        child.output(found, folder, is_archived=spec.is_archived, published=spec.published)
        if note := step_note(step, folder):
            child.note(note)
        if publish is not None:
            publish(folder, child)
        child.finished(found)
    return found


def part_of(number: int, num_parts: int) -> str:
    """Return the name of a parallel task, counted from 0, among `num_parts`; empty when it is the only one.

    >>> part_of(0, 2), part_of(0, 1)
    ('1 of 2', '')
    """
    return f"{number + 1} of {num_parts}" if num_parts > 1 else ""


def _overall(step: str, seconds: Mapping[str, float]) -> str:
    """Return how far the run is: "step 5 of 11, about 14 min left in all", the time by the latest run of the same preset."""
    names = list(STEP_NOTES)
    left = [seconds.get(name) for name in names[names.index(step) :]]
    estimate = "" if None in left else f", {time_text(sum(filter(None, left)))} left in all"
    return f"{_count(step)}{estimate}"


def _count(step: str) -> str:
    return f"step {list(STEP_NOTES).index(step) + 1} of {len(STEP_NOTES)}"


def _found(job: Job, machine: Machine, store: Store, wanted: StepVersion, *, is_fresh: bool) -> StepOutput | None:
    """Return the output that need not be computed, verified by its hashes, or None."""
    step, version = str(wanted.parts["step"]), wanted.version
    if job["origin"] is not None and step in BEFORE_FINETUNE and (output := _of_origin(job["origin"], machine, wanted)):
        return output
    try:
        found = store.find(step, version)
    except CorruptError as error:
        print(f"{step}: WARNING: {error}; set aside as {store.discard(step, version)}, and recomputed", flush=True)
        return None
    if found is not None and is_fresh:
        print(f"{step}: --fresh: version {version} set aside as {store.discard(step, version, everywhere=True)}", flush=True)
        return None
    return found


def _of_origin(origin: ResumeOrigin, machine: Machine, wanted: StepVersion) -> StepOutput | None:
    """Return the origin's output, fetched if need be; None for a ladder or baseline that was measured otherwise than this run asks for."""
    output = origin["outputs"][step := str(wanted.parts["step"])]
    if step in ("calibrate", "baseline"):
        then = output_manifest(machine, output)["parts"]
        if any(then[part].get(name) != now for part in ("settings", "inputs") for name, now in _measured_by(wanted, part)):
            print(f"{step}: the origin's was measured with other settings or another engine: measured again", flush=True)
            return None
    fetch_output(machine, output)
    return output


def _measured_by(wanted: StepVersion, part: str) -> list[tuple[str, Any]]:
    # Where it was computed is no reason to measure again; a resumed run is often on another machine.
    return [(name, now) for name, now in wanted.parts[part].items() if name != "device"]


def code_tags(code: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tags that lead from a tracked run to its commit."""
    return {"git.commit": code["commit"], "git.dirty": code["is_dirty"]}
