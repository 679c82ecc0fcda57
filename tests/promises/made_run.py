"""A run of three small steps, each done by `steps.job.task.run` as a task of the flow does it, in this process or as another machine."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from made_runs import facts_of
from tracked_runs import client_of

from grpo.base.files import append_line
from grpo.metrics.records import Record
from steps.job.resume import Job
from steps.job.task import run as run_step
from steps.run.kinds import Variant
from steps.run.machine import Machine
from steps.run.records import Run, Runs
from steps.run.step import Step, StepOutput
from steps.run.store import Store
from steps.run.work import Work


class CountingStep(Step):
    """A step whose body is below."""

    def variant(self, kind: str) -> Variant:
        """Return this module for every kind."""
        return Variant(module=__name__)


STEPS = {
    "calibrate": CountingStep(name="calibrate", says="Counts."),
    "baseline": CountingStep(name="baseline", says="Counts.", inputs=("calibrate",)),
    "finetune": CountingStep(name="finetune", says="Counts.", inputs=("calibrate", "baseline")),
}
COUNT = 4
before: list[Callable[[str, int], object]] = []
"""Called with a step's name and a number before that is counted."""


def body(work: Work) -> None:
    """Go on counting in the progress folder, and write what was counted and taken in."""
    path, step = work.progress_folder / "count", work.progress_folder.parent.name
    first = len(path.read_text().splitlines()) if path.exists() else 0
    print(f"{step} from {first}", flush=True)
    work.go_on_after(first - 1)
    for number in range(first, COUNT):
        for each in before:
            each(step, number)
        append_line(path, str(number))
        work.log(Record(number, {"grpo/entropy": 1 / (number + 1)}))
        work.saved()
    (work.folder / "result").write_text("".join((folder / "result").read_text() for folder in work.inputs.values()) + path.read_text())


def do_run(name: str) -> Run:
    runs = Runs(Store.of(Machine.here()))
    facts = facts_of(name, Machine.here())
    runs.begin_run(facts)
    job = Job(run=name, settings=facts["settings"], code=facts["code"], origin=None, usual={})
    flow = SimpleNamespace(job=job, input=None)
    for name_of_step, step in STEPS.items():
        setattr(flow, f"{name_of_step}_output", run_step(step, flow))
    runs.begin(name, "end", "", "").end("finished")
    return run_of(name)


def run_of(name: str) -> Run:
    run = Runs(Store.of(Machine.here())).get(name)
    assert run is not None
    return run


def hashes(run: Run) -> list[str]:
    outputs: list[StepOutput | None] = [run.output_of(step.name) for step in STEPS.values()]
    return [output["output_hash"] for output in outputs if output is not None]


def progress_left(homes: Path) -> list[str]:
    return [*Store.of(Machine.here()).keys("progress/"), *(str(path) for path in homes.rglob("progress/*/*"))]


def rows_logged(place: Path) -> list[list[int]]:
    """Return of each step's run in the tracking store of a folder the steps of its rows of the entropy."""
    client = client_of(place)
    children = [run for run in client.search_runs(["1"]) if "mlflow.parentRunId" in run.data.tags]
    histories = (client.get_metric_history(run.info.run_id, "curves/3 entropy") for run in children)
    return [sorted(point.step for point in history) for history in histories]


def forked(body: Callable[[], object], **variables: str | Path) -> int:
    """Run in a child with these environment variables, and return its process id."""
    pid = os.fork()
    if pid == 0:
        os.environ.update({name: str(value) for name, value in variables.items()})
        try:
            body()
        except BaseException:  # noqa: BLE001  A child must not go on with the tests.
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def status_of(pid: int) -> int:
    """Wait for a child and return its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_before(step: str, number: int) -> Callable[[str, int], None]:
    return lambda *at: os.kill(os.getpid(), signal.SIGKILL) if at == (step, number) else None
