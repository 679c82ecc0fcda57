"""Logs runs to MLflow from run records and step journals (one line per record of metrics). No row is logged twice.

- A run has one parent run in MLflow. Each version of a step's task has one child run, for all attempts (tries of the task).
- The parent gets a finished step's rows, because a failed step may begin anew as another version.
- A row is one value of a metric. Metric name and step number identify a row: databases round values, and restarted steps may log new times.
- A process reads MLflow's rows before it first sends rows, after a failed call, and before an attempt counts as logged.
"""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from grpo.base.documents import DocumentError
from grpo.base.errors import PlainError
from grpo.base.files import CorruptError, locked
from grpo.settings.names import compared_settings, short
from grpo.statistics.intervals import elo
from steps import STEPS
from steps.names import REPORT, RESULTS
from steps.pages.results import Dataset, Results, read_dataset, read_results
from steps.pages.templates import page
from steps.run.commands import resume_command
from steps.run.machine import Machine, sqlite_file
from steps.run.records import Attempt, Run, Runs, Status
from steps.run.step import StepOutput, step_of
from steps.run.store import Store
from steps.track.client import CHILD, METAFLOW_RUN, RUN, TrackingStore, long_timeout
from steps.track.notes import MAIN_CURVES, run_name, step_note, tracked_name
from steps.track.outages import TrackingAwayError, TrackingRefusedError, failures_of
from steps.track.registry import register
from steps.track.sender import journal_of

# isort: split
# After `steps.track.client`, which sets variables for MLflow's import.
from mlflow.entities import Dataset as LoggedDataset
from mlflow.entities import DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.entities import Run as Logged

_LOGGED: Final = "chess_grpo.logged"  # Child's tag: number of the completely logged attempt.
_NOTE: Final = "mlflow.note.content"
_PARENT: Final = "mlflow.parentRunId"
_RUN_NAME: Final = "mlflow.runName"
_LONGEST_TAG: Final = 7_500  # Characters; MLflow's limit is 8,000.
_METRICS_PER_CALL: Final = 500  # MLflow takes 1,000; a call costs 28 ms for any number.
# Characters in MLflow's columns.
_LONGEST_DIGEST: Final = 36
_LONGEST_NAME: Final = 500
SECONDS: Final = 30.0  # Longest wait when a run starts, ends or is listed.
Known = dict[tuple[str, str], set[tuple[str, int]]]  # (MLflow run, task's key) -> (metric, step) of the rows in MLflow.


def publish(run: Run, store: Store, machine: Machine, *, task: tuple[str, str] | None = None, known: Known | None = None) -> str:
    """Log a run's missing rows, pages and tags to its tracking store. Return why some are unsent, or "".

    `task`, a (step, part), sends only this task's rows, without the run's texts and policies. `known` holds the rows that calls found or
    sent.
    """
    return _View(run, store, machine, {} if known is None else known).publish(task)


def publish_all(
    machine: Machine, *, runs: Sequence[Run] | None = None, again: bool = False, seconds: float | None = None
) -> dict[str, str]:
    """Publish `runs`, by default those that are not completely logged. Return run -> reason, as `publish`.

    `again` also checks logged runs, because a database may have been restored or deleted. `seconds`: limit unless all
    stores are SQLite files; late runs have a reason.
    """
    store, reasons = Store.of(machine), dict[str, str]()
    chosen = runs if runs is not None else Runs(store).all() if again else Runs(store).unpublished()
    # Oldest first, because the registry compares a policy with earlier policies.
    in_order = sorted(chosen, key=lambda run: run.order)
    if seconds is None or all(sqlite_file(run.facts["tracking"]) for run in in_order):
        _publish_each(in_order, store, machine, again=again, reasons=reasons)
        return reasons
    failures: list[BaseException] = []

    def work() -> None:
        try:
            _publish_each(in_order, store, machine, again=again, reasons=reasons)
        except BaseException as error:  # noqa: BLE001 - The caller's thread raises it.
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    late = {run.name: f"the tracking store {run.facts['tracking']} is slow: not done within {seconds:.0f} s" for run in in_order}
    return late | dict(reasons)


def _publish_each(runs: Iterable[Run], store: Store, machine: Machine, *, again: bool, reasons: dict[str, str]) -> None:
    """Ask a store that does not answer only once, because a request takes seconds."""
    away: dict[str, str] = {}
    for run in runs:
        address = run.facts["tracking"]
        if address in away:
            reasons[run.name] = away[address]
            continue
        view = _View(run, store, machine, {}, again=again)
        reasons[run.name] = view.publish(None)
        if view.is_away:
            away[address] = reasons[run.name]


class _View:
    def __init__(self, run: Run, store: Store, machine: Machine, known: Known, *, again: bool = False) -> None:
        self._run, self._store, self._machine, self._known, self._again = run, store, machine, known, again
        self.is_away = False
        self._key, self._locks = f"{run.name}@{round(1_000 * run.started)}", machine.home / "tracking"
        self._problems: list[str] = []

    def publish(self, task: tuple[str, str] | None) -> str:
        try:
            with failures_of(self._run.facts["tracking"], f"run {self._run.name}"), locked(self._locks / f"{self._run.name}.lock"):
                self._publish(task)
        except PlainError as error:
            self.is_away = isinstance(error, TrackingAwayError) and error.may_pass
            self._problems.append(str(error))
        return "; ".join(self._problems)

    def _publish(self, task: tuple[str, str] | None) -> None:
        run = self._run
        self._tracking = tracking = TrackingStore.of_run(run.facts["tracking"], self._machine)
        self._client, self._experiment = tracking.client, tracking.experiment
        reported = run.output_of("report")
        results = None if reported is None else read_results(self._store.file(reported, RESULTS))
        parent = self._run_with_key(RUN, self._key, run.facts["label"], run.started, {"chess_grpo.step": "flow"})
        with self._noting_problems(f"what describes run {run.name}"):
            values = compared_settings(run.facts["settings"])
            self._describe(parent, _run_tags(run, results), {name: short(name, value) for name, value in values.items()})
            for file, text in run.facts["texts"].items() if task is None else ():
                tracking.refuse_foreign_place(str(parent.info.artifact_uri))
                self._client.log_text(parent.info.run_id, text, file)
        if (joined := run.output_of("join_boards")) is not None:
            with self._noting_problems(f"the dataset of run {run.name}"):
                self._log_dataset(parent, read_dataset(self._store.file(joined, REPORT), joined["output_hash"]), self._store.place(joined))
        for attempt in {(attempt.step, attempt.part, attempt.version): attempt for attempt in run.attempts}.values():
            if task in (None, (attempt.step, attempt.part)) and attempt.step not in (STEPS[0], STEPS[-1]):
                with self._noting_problems(f"the step {attempt.step}"):
                    self._log_attempt(attempt, parent)
        self._set_status(parent, run.status, run.ended)
        if task is not None or run.status == "running":
            return
        if run.status == "finished" and results is not None:
            # Runs register in turn, so each is compared with earlier policies.
            with self._noting_problems("the policies of `select`"), locked(self._locks / "registry.lock"):
                print(register(run, results, self._store, tracking, parent), flush=True)
        if not self._problems:
            run.set_published()

    @contextmanager
    def _noting_problems(self, what: str) -> Iterator[None]:
        """Note a refusal or a damaged file, and go on. An outage ends `publish`."""
        try:
            with failures_of(self._run.facts["tracking"], what):
                yield
        except (TrackingRefusedError, CorruptError, DocumentError) as error:
            self._problems.append(str(error))

    def _log_dataset(self, parent: Logged, dataset: Dataset, place: str) -> None:
        self._describe(parent, {}, {"dataset": dataset.output_hash})
        if any(logged.dataset.digest == dataset.output_hash[:_LONGEST_DIGEST] for logged in parent.inputs.dataset_inputs):
            return
        profile = {"num_rows": dataset.boards.rows, "splits": dataset.boards.splits, "sources": dataset.boards.sources}
        described = LoggedDataset(
            name=dataset.name[:_LONGEST_NAME],
            digest=dataset.output_hash[:_LONGEST_DIGEST],
            source_type="s3" if place.startswith("s3:") else "local",
            source=json.dumps({"uri": place}),
            profile=json.dumps(profile),
        )
        self._client.log_inputs(parent.info.run_id, [DatasetInput(described, [InputTag("mlflow.data.context", "training")])])

    def _log_attempt(self, attempt: Attempt, parent: Logged) -> None:
        step, key = step_of(attempt.step), f"{self._key}/{attempt.step}/{attempt.part}/{attempt.version}"
        tags = {_PARENT: parent.info.run_id, "chess_grpo.step": attempt.step}
        child = self._run_with_key(CHILD, key, run_name(attempt.step, attempt.part), attempt.started, tags)
        if child.data.tags.get(_LOGGED) == str(attempt.number) and not self._again:
            return
        rows, is_over = journal_of(attempt, self._store), attempt.ended is not None
        variant = step.variant(self._run.facts["settings"]["policy"]["kind"])
        curves = MAIN_CURVES if attempt.step == "finetune" else ()
        parent_names = set(map(tracked_name, (*step.headlines, *variant.headlines, *curves)))
        metrics = _metrics(rows)
        if attempt.status == "finished":
            parent_metrics = [metric for metric in metrics if metric.key in parent_names]
            self._send_metrics(parent_metrics, parent, key, parent.data.metrics.keys() & parent_names, ask_store=True)
        self._send_metrics(metrics, child, key, child.data.metrics.keys(), ask_store=is_over)
        self._set_status(child, attempt.status, attempt.ended)
        tags |= {METAFLOW_RUN: self._run.name, "chess_grpo.version": attempt.version, _NOTE: step_note(step, attempt)}
        if attempt.output is not None:
            self._send_pages(child, attempt.output, step.pages)
            tags |= {"chess_grpo.output_hash": attempt.output["output_hash"], "chess_grpo.reused": str(attempt.output["reused"])}
        # `tags` repeats the parent's id, because an earlier attempt's parent may have been a deleted duplicate.
        self._describe(child, tags | ({_LOGGED: str(attempt.number)} if is_over else {}))

    def _send_metrics(self, metrics: Sequence[Metric], logged: Logged, key: str, names: Iterable[str], *, ask_store: bool) -> None:
        run_id = logged.info.run_id
        if ask_store or (run_id, key) not in self._known:
            histories = (self._client.get_metric_history(run_id, name) for name in names)
            self._known[run_id, key] = {(metric.key, metric.step) for history in histories for metric in history}
        known = self._known[run_id, key]
        new = [metric for metric in metrics if (metric.key, metric.step) not in known]
        for start in range(0, len(new), _METRICS_PER_CALL):
            self._client.log_batch(run_id, metrics=new[start : start + _METRICS_PER_CALL])
        known |= {(metric.key, metric.step) for metric in new}

    def _send_pages(self, logged: Logged, output: StepOutput, names: Iterable[str]) -> None:
        folder = self._store.open(output)
        self._tracking.refuse_foreign_place(str(logged.info.artifact_uri))
        for path in (folder / name for name in names if (folder / name).exists()):
            with long_timeout():
                self._client.log_artifact(logged.info.run_id, str(path))

    def _run_with_key(self, tag: str, key: str, name: str, started: float, tags: Mapping[str, str]) -> Logged:
        """Create a missing run. Of several processes' runs, keep the smallest id."""
        condition = f"tags.`{tag}` = '{key}'"
        if not (runs := self._client.search_runs([self._experiment], condition)):
            self._client.create_run(self._experiment, start_time=round(1_000 * started), run_name=name, tags={tag: key, **tags})
            runs = self._client.search_runs([self._experiment], condition)
        first, *doubles = sorted(runs, key=lambda run: str(run.info.run_id))
        for double in doubles:
            self._client.delete_run(double.info.run_id)
        return first

    def _describe(self, run: Logged, tags: Mapping[str, str], params: Mapping[str, str] | None = None) -> None:
        short = {name: value if len(value) <= _LONGEST_TAG else f"{value[:_LONGEST_TAG]} ... (cut here)" for name, value in tags.items()}
        new_tags = [RunTag(name, value) for name, value in short.items() if run.data.tags.get(name) != value]
        new_params = [Param(name, value) for name, value in (params or {}).items() if name not in run.data.params]
        if new_tags or new_params:
            self._client.log_batch(run.info.run_id, tags=new_tags, params=new_params)

    def _set_status(self, run: Logged, status: Status, ended: float | None) -> None:
        name = status.upper()
        if run.info.status == name:
            return
        if ended is None:
            self._client.update_run(run.info.run_id, status=name)
        else:
            self._client.set_terminated(run.info.run_id, status=name, end_time=round(1_000 * ended))


def _metrics(rows: Sequence[Mapping[str, Any]]) -> list[Metric]:
    return [
        Metric(tracked_name(name), float(value), row["time"], row["record"]["step"])
        for row in rows
        for name, value in row["record"].items()
        if name not in ("step", "events")
    ]


def _run_tags(run: Run, results: Results | None) -> dict[str, str]:
    facts = run.facts
    tags = {
        **facts["tags"],
        METAFLOW_RUN: run.name,
        "chess_grpo.preset": facts["preset"],
        "chess_grpo.command": facts["command"],
        _NOTE: page("run", run=run, results=results, resume=resume_command(run.name, run.places)),
    }
    if results is not None:
        decision = results.decision
        gain = f"{elo(decision.claims[0].interval.value):+.0f} Elo, {decision.verdict}" if decision.claims else "no candidate"
        tags |= {"chess_grpo.verdict": decision.verdict, _RUN_NAME: f"{gain} · {facts['label']}"}
    return tags
