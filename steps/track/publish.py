"""Logs runs to MLflow from their records and the journals of their steps: idempotent, and the only way there.

A run is one parent, found again by the tag `chess_grpo.run`, and a child for each step and part, whatever the number of its attempts. A
process that does not know how many lines of a journal the store has, for it has just begun or a call failed, counts the store's rows and
sends what is lacking. The rows are counted once more before a step is called logged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.base.files import CorruptError, read_json
from grpo.match.intervals import elo
from grpo.policy.files import NETWORK
from grpo.settings.names import MAIN, compared_settings
from steps import STEPS
from steps.pages.results import Results, read_results
from steps.pages.templates import page
from steps.run.commands import FLOW_FILE
from steps.run.launch import launch_of
from steps.run.machine import Machine
from steps.run.names import FINDINGS, RESULTS
from steps.run.records import Attempt, Run, Runs, Status
from steps.run.step import step_of
from steps.run.store import Store
from steps.run.work import JOURNAL, read_journal
from steps.track.charts import MAIN_CURVES, tracked_name
from steps.track.client import CHILD, METAFLOW_RUN, RUN, TrackingStore, cut, locked, waiting
from steps.track.notes import run_name, run_note, step_note
from steps.track.outages import TrackingRefusedError, failures_of
from steps.track.registry import register
from steps.track.sender import Sender
from steps.track.wandb import mirror_of

# isort: split
# After `steps.track.client`, which sets what MLflow reads once.
from mlflow.entities import Metric, Param, RunTag
from mlflow.entities import Run as Logged
from mlflow.tracking import MlflowClient

_OUTPUT_HASH: Final = "chess_grpo.output_hash"
_TEXTS: Final = "chess_grpo.texts"
_REGISTERED: Final = "chess_grpo.champion"
_NOTE: Final = "mlflow.note.content"
_PARENT: Final = "mlflow.parentRunId"
_RUN_NAME: Final = "mlflow.runName"
_STATUS: Final[Mapping[Status, str]] = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
# MLflow's limits (mlflow.utils.validation) and columns (mlflow.store.tracking.dbmodels), of each the narrower.
_LONGEST_KEY: Final = 250
_LONGEST_TAG: Final = 7_500
_LONGEST_PARAM: Final = 6_000
_METRICS_PER_CALL: Final = 500  # MLflow takes 1,000; a call costs 28 ms whether it carries one or many.
_FINETUNE: Final = "finetune"


def publish(run: Run, store: Store, machine: Machine) -> str:
    """Log what the run's tracking store lacks of it, and return why something is not logged yet; empty when everything is.

    It is idempotent, and several processes may do it at once. It raises nothing of the tracking store.
    """
    return _View(store, machine).publish(run)


def publish_all(machine: Machine) -> dict[str, str]:
    """Publish all runs of the machine's store that are not logged yet; return run -> why something is not, empty when all is."""
    store, found, away = Store.of(machine), dict[str, str](), dict[str, str]()
    # In their order: the registry compares a policy with those before it.
    for run in reversed(Runs(store).unpublished()):
        address = run.facts["tracking"]
        found[run.name] = away.get(address) or publish(run, store, machine)
        if "does not answer" in found[run.name]:
            away[address] = found[run.name]  # Each question to it takes seconds.
    return found


def journal_of(attempt: Attempt, store: Store) -> list[dict[str, Any]]:
    """Return the lines of an attempt's journal: of its output, or of its progress as far as this machine has that."""
    if attempt.output is not None:
        try:
            return read_journal(store.file(attempt.output, JOURNAL).parents[1])
        except FileNotFoundError:  # It had nothing to say.
            return []
    # Another run may go on from the progress of a killed one: its lines are not this one's.
    rows = read_journal(store.progress(attempt.step, attempt.version))
    return [row for row in rows if attempt.ended is None or row["time"] <= 1_000 * attempt.ended]


class _View:
    """A run in its tracking store. What it has found or made there it keeps: to publish once more asks for nothing again."""

    def __init__(self, store: Store, machine: Machine) -> None:
        self._store, self._machine, self._locks = store, machine, machine.home / "tracking"
        self._logged: dict[str, Logged] = {}
        """By key, as they are there."""
        self._num_sent: dict[str, int] = {}
        """By key, how many lines of the journal are known to be there."""
        self._problems: list[str] = []
        """What was refused."""

    def publish(self, run: Run, task: tuple[str, str] | None = None) -> str:
        """Log what the store lacks of the run as it is now, and return why something is not logged yet; empty when everything is.

        Args:
            run: always the same.
            task: step and part that are to be logged, without others and without the run's end; None for all.
        """
        self._run, self._key, self._problems = run, f"{run.name}@{round(1_000 * run.started)}", []
        try:
            with failures_of(run.facts["tracking"], f"run {run.name}"), locked(self._locks / f"{run.name}.lock"):
                self._publish(task)
        except PlainError as error:
            self._problems = [str(error)]
        if self._problems:
            # It may be otherwise there: calls whose answer was lost, or a double that another machine deleted.
            self._logged.clear()
            self._num_sent.clear()
        return "; ".join(self._problems)

    def _publish(self, task: tuple[str, str] | None) -> None:
        parent = self._parent()
        for name, attempt in self._run.latest().items():
            if task in (None, name) and not attempt.is_published and attempt.step not in (STEPS[0], STEPS[-1]):
                self._attempt(attempt, parent.info.run_id)
        self._set_status(parent, self._run.status, self._run.ended)
        if task is not None or self._run.status == "running":
            return
        results = self._results
        if self._run.status == "finished" and results is not None and _REGISTERED not in parent.data.tags:
            # Of runs of one disk that end together the later one sees what the earlier one has registered.
            with self._taking("the policies of `select`"), locked(self._locks / "registry.lock"):
                peak, champion = register(self._run, results, self._store, self._client, parent)
                print(f"registry: {peak}\nregistry: {champion}", flush=True)
                self._describe(parent, {"chess_grpo.peak": peak, _REGISTERED: champion})
        if not self._problems:
            self._run.set_published()

    @contextmanager
    def _taking(self, what: str) -> Iterator[None]:
        """Note what the store refuses, and what is damaged here, and go on with the rest."""
        try:
            with failures_of(self._run.facts["tracking"], what):
                yield
        except (TrackingRefusedError, CorruptError) as error:
            self._problems.append(str(error))

    @cached_property
    def _tracking(self) -> TrackingStore:
        return TrackingStore.of_run(self._run.facts["tracking"], self._machine)

    @property
    def _client(self) -> MlflowClient:
        return self._tracking.client

    @property
    def _results(self) -> Results | None:
        output = self._run.output_of("report")
        return None if output is None else read_results(self._store.file(output, RESULTS))

    def _parent(self) -> Logged:
        facts, results = self._run.facts, self._results
        parent = self._one(RUN, self._key, facts["label"], self._run.started, {"chess_grpo.step": "flow"})
        tags = {
            **facts["tags"],
            METAFLOW_RUN: self._run.name,
            "chess_grpo.preset": facts["preset"],
            "chess_grpo.command": facts["command"],
            "mlflow.source.name": FLOW_FILE,
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": str(facts["code"].get("commit", "")),
            _NOTE: run_note(self._run, "" if results is None else page("description", results=results)),
        }
        if results is not None:
            tags |= _verdict_tags(results, facts["label"])
        if _TEXTS not in parent.data.tags:
            for name, text in facts["texts"].items():
                with self._taking(f"the file {name}"):
                    self._client.log_text(parent.info.run_id, text, name)
            tags |= {_TEXTS: ", ".join(facts["texts"])}
        self._describe(parent, tags, _params(facts["settings"]))
        return parent

    def _attempt(self, attempt: Attempt, parent: str) -> None:
        """Log what the store lacks of an attempt; note that it has all, once the attempt is over and its rows were counted."""
        num_problems, declared = len(self._problems), step_of(attempt.step)
        name = run_name(attempt.step, attempt.part)
        key = f"{self._key}/{attempt.step}/{attempt.part}"
        child = self._one(CHILD, key, name, attempt.started, {_PARENT: parent, "chess_grpo.step": attempt.step})
        tags = {_PARENT: parent, METAFLOW_RUN: self._run.name, "chess_grpo.version": attempt.version, _NOTE: step_note(declared, attempt)}
        with self._taking(f"rows of {attempt.step}"):
            rows, num_sent = journal_of(attempt, self._store), None if attempt.ended is not None else self._num_sent.get(key)
            headlines = [] if attempt.ended is None else _headlines(rows, declared.headlines)
            new = rows[num_sent:]
            for run_id, metrics in ((parent, [*_curves(attempt.step, new), *headlines]), (child.info.run_id, _metrics(new))):
                self._log(run_id, self._missing(run_id, metrics) if num_sent is None else metrics)
            self._num_sent[key] = len(rows)
        if attempt.ended is not None:
            tags |= self._send_pages(child, attempt, declared.pages)
        self._describe(child, tags)
        self._set_status(child, attempt.status, attempt.ended)
        if attempt.ended is not None and len(self._problems) == num_problems:
            attempt.set_published()

    def _missing(self, run_id: str, metrics: Sequence[Metric]) -> list[Metric]:
        """Return the rows of the names and steps that the store does not have.

        Values are not compared, for a database may round; nor times, for a machine that goes on from another's progress has its own.
        """
        keys = dict.fromkeys(metric.key for metric in metrics)
        there = {(metric.key, metric.step) for key in keys for metric in self._client.get_metric_history(run_id, key)}
        return [metric for metric in metrics if (metric.key, metric.step) not in there]

    def _send_pages(self, child: Logged, attempt: Attempt, names: Iterable[str]) -> dict[str, str]:
        """Log the pages of an output that is not logged yet, and return the tags that say which it is."""
        output = attempt.output
        if output is None or child.data.tags.get(_OUTPUT_HASH) == output["output_hash"]:
            return {}
        tags = {"chess_grpo.reused": str(output["reused"])}
        for name in names:
            with self._taking(f"the page {name} of {attempt.step}"):
                try:
                    path = self._store.file(output, name)
                except FileNotFoundError:
                    continue
                with waiting():
                    self._client.log_artifact(child.info.run_id, str(path))
                if name == FINDINGS:
                    tags["chess_grpo.findings"] = str(read_json(path)["tag"])
        return tags | {_OUTPUT_HASH: output["output_hash"]}  # The last: it says that the others are there.

    def _one(self, tag: str, key: str, name: str, started: float, tags: Mapping[str, str]) -> Logged:
        """Return the run with this key, which is created when there is none; of two that were created at once the smaller id stays."""
        if key not in self._logged:
            experiment, condition = self._tracking.experiment, f"tags.`{tag}` = '{key}'"
            if not (found := self._client.search_runs([experiment], condition)):
                made = {"start_time": round(1_000 * started), "run_name": cut(name, _LONGEST_KEY), "tags": {tag: key, **tags}}
                self._client.create_run(experiment, **made)
                found = self._client.search_runs([experiment], condition)
            self._logged[key], *doubles = sorted(found, key=lambda each: str(each.info.run_id))
            for double in doubles:
                self._client.delete_run(double.info.run_id)
        return self._logged[key]

    def _describe(self, run: Logged, tags: Mapping[str, str], params: Mapping[str, str] | None = None) -> None:
        """Set the tags and parameters that the run does not have yet, cut to what every store takes."""
        run_id = run.info.run_id
        with self._taking("parameters"):
            new = {name: cut(value, _LONGEST_PARAM) for name, value in (params or {}).items() if name not in run.data.params}
            if new:
                self._client.log_batch(run_id, params=[Param(name, value) for name, value in new.items()])
                run.data.params.update(new)
        for name, value in tags.items():
            short = cut(value, _LONGEST_KEY if name == _RUN_NAME else _LONGEST_TAG)
            if run.data.tags.get(name) != short:
                with self._taking(f"the tag {name}"):
                    self._client.log_batch(run_id, tags=[RunTag(name, short)])
                    run.data.tags[name] = short

    def _set_status(self, run: Logged, status: Status, ended: float | None) -> None:
        if run.info.status == _STATUS[status]:
            return
        if ended is None:
            self._client.update_run(run.info.run_id, status=_STATUS[status])
        else:
            self._client.set_terminated(run.info.run_id, status=_STATUS[status], end_time=round(1_000 * ended))
        self._logged.clear()  # A run of MLflow's that was read keeps its status.

    def _log(self, run_id: str, metrics: Sequence[Metric]) -> None:
        for start in range(0, len(metrics), _METRICS_PER_CALL):
            self._client.log_batch(run_id, metrics=metrics[start : start + _METRICS_PER_CALL])


def _metrics(rows: Sequence[Mapping[str, Any]]) -> list[Metric]:
    return [
        Metric(tracked_name(name), float(value), row["time"], row["record"]["step"])
        for row in rows
        for name, value in row["record"].items()
        if name not in ("step", "events") and isinstance(value, int | float)
    ]


def _curves(step: str, rows: Sequence[Mapping[str, Any]]) -> list[Metric]:
    """Return the main curves, which the run has beside `finetune`; other steps have none."""
    names = {tracked_name(name) for name in MAIN_CURVES if step == _FINETUNE}
    return [metric for metric in _metrics(rows) if metric.key in names]


def _headlines(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[Metric]:
    """Return the last value of each of these metrics; a main curve is on the parent anyway."""
    found = {name: row for row in rows for name in names if name in row["record"] and name not in MAIN_CURVES}
    return [Metric(name, float(row["record"][name]), row["time"], row["record"]["step"]) for name, row in found.items()]


def _params(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that matter, and those that differ from the preset; of a network none of language models."""
    changed = launch_of(settings).differences
    is_network = settings.get("policy", {}).get("kind") == NETWORK
    return {
        name: value
        for name, value in compared_settings(settings).items()
        if name in changed or (name in MAIN and not (is_network and name.startswith("language.")))
    }


def _verdict_tags(results: Results, label: str) -> dict[str, str]:
    decision = results.decision
    short = "no candidate"
    if decision.claims:
        short = f"{elo(decision.claims[0].interval.score):+.0f} Elo, {decision.verdict}"
    return {"chess_grpo.verdict": decision.verdict, _RUN_NAME: f"{short} · {label}"}


class Publisher(Sender):
    """Publishes an attempt to MLflow."""

    tracker = "MLflow"
    later = "a later step, the next run or `chess-grpo track` logs it"

    def __init__(self, machine: Machine, attempt: Attempt) -> None:
        """Prepare; `start` begins."""
        super().__init__(attempt, Store.of(machine))
        self._view = _View(self.store, machine)

    def send(self, *, is_last: bool) -> str:  # noqa: ARG002
        """Publish what there is."""
        return self._view.publish(self.flow_run(), (self.attempt.step, self.attempt.part))


@contextmanager
def sending(machine: Machine, attempt: Attempt) -> Iterator[None]:
    """Send an attempt to MLflow, and to W&B if that is on, while the block lasts."""
    mirror = mirror_of(machine, attempt, Store.of(machine), journal_of)
    senders = [Publisher(machine, attempt), *([] if mirror is None else [mirror])]
    for sender in senders:
        sender.start()
    try:
        yield
    finally:
        for sender in senders:
            sender.is_over.set()
        for sender in senders:
            sender.finish()
