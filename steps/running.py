"""How a step is run: its output is taken from the store if its version is there, else made, and the tracker is told which."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict

from grpo.content import MANIFEST, CorruptError
from steps.machine import Machine
from steps.making import make_output
from steps.store import StepOutput, Store
from steps.tracking import ChildRun, Origin, Tracker
from steps.versions import step_version
from steps.work import HISTORY, Sink, TerminalSink, Work, read_history

BEFORE_FINETUNE: Final = ("join_boards", "check_boards", "pretrain", "calibrate", "baseline")
"""Steps whose output a resumed run takes from its origin."""


class Job(TypedDict):
    """What every step of a run needs to know: plain data, made by `start`."""

    settings: dict[str, Any]
    code: dict[str, Any]
    """Commit, dirty flag and lock of the launching checkout."""
    metaflow_run: str
    mlflow_run: str
    is_fresh: bool
    """Make every output anew, even one that is in the store."""
    origin: Origin | None
    """Where a resumed run goes on from."""


def run_step(
    job: Job,
    machine: Machine,
    *,
    step: str,
    module: str,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
    work: Callable[[Work], None],
    goes_on: bool = False,
    shown: Sequence[str] = (),
    sinks: Sequence[Sink] = (),
    publish: Callable[[Path, ChildRun], None] | None = None,
) -> StepOutput:
    """Return a step's output: the origin's, the store's if its version is there, or a new one; tell the tracker which.

    Args:
        job: the run.
        machine: this machine.
        step: name of the step.
        module: the module with its body, whose source (and that of what it imports) is part of the version.
        settings: the part of the settings that the body reads.
        inputs: hashes of what it takes in.
        work: the body; fills the folder of the `Work` it is given.
        goes_on: whether the body, after a kill, goes on from what is in its `Work`'s progress folder.
        shown: metrics to print.
        sinks: who else takes the records.
        publish: logs what people want to open in the tracker.
    """
    store, tracker = Store(machine.home), Tracker(machine)
    version = step_version(step=step, module=module, settings=settings, inputs=inputs, code=job["code"])
    tags = code_tags(job["code"]) | {"metaflow.run": job["metaflow_run"], "metaflow.step": step}
    with tracker.child(job["mlflow_run"], step, tags) as child:
        found = _found(job, store, step, version.version)
        if found is None:
            found = make_output(
                store,
                step,
                version.version,
                facts={"parts": version.parts, "code": job["code"]},
                body=work,
                goes_on=goes_on,
                is_fresh=job["is_fresh"],
                sinks=(child, *sinks),
                terminal=TerminalSink(step, shown, lambda text: print(text, flush=True)),
            )
        else:
            print(f"{step}: reusing version {found['version']}, output {found['output_hash'][:12]}", flush=True)
            for record in read_history(store.folder(step, found["version"])):
                child.take(record)
            if goes_on:
                store.forget_progress(step, found["version"])
        folder = store.folder(step, found["version"])
        child.file(folder / MANIFEST)
        child.file(folder / HISTORY)
        if publish is not None:
            publish(folder, child)
        child.finished(found)
    return found


def _found(job: Job, store: Store, step: str, version: str) -> StepOutput | None:
    """Return the output that need not be made, verified by its hashes, or None."""
    if job["origin"] is not None and step in BEFORE_FINETUNE:
        output = job["origin"]["outputs"][step]
        store.open(output)
        return output
    try:
        found = store.find(step, version)
    except CorruptError as error:
        print(f"{step}: WARNING: {error}; set aside as {store.discard(step, version)}, and made anew", flush=True)
        return None
    if found is not None and job["is_fresh"]:
        print(f"{step}: --fresh: version {version} set aside as {store.discard(step, version)}", flush=True)
        return None
    return found


def code_tags(code: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tags that lead from a tracked run to its commit."""
    return {"git.commit": code["commit"], "git.dirty": code["is_dirty"]}
