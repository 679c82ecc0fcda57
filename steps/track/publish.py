"""Logs runs to MLflow from their records and the journals of their steps: idempotent, and the only way there.

A run is one parent, found again by the tag `chess_grpo.run`, and a child for each step and part, whatever the number of its attempts. The
child's tag `chess_grpo.lines` says how many lines of the journal it has; lines that are sent again are dropped, because MLflow's SQL store
ignores a row with an equal name, time, step and value. Nothing is called logged before the store's rows were counted.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.base.files import CorruptError, read_json
from grpo.match.verdict import short_verdict
from grpo.policy.files import NETWORK
from grpo.settings.metrics import MAIN_CURVES, tracked_name
from grpo.settings.names import MAIN, compared_settings
from steps import STEPS
from steps.pages.results import Results, read_results
from steps.pages.templates import description
from steps.run.commands import FLOW_FILE
from steps.run.launch import launch_of
from steps.run.machine import Machine
from steps.run.names import BOARDS, FINDINGS, REPORT, RESULTS
from steps.run.records import Attempt, Run, Runs, Status
from steps.run.step import StepOutput, step_of
from steps.run.store import Store
from steps.run.work import JOURNAL, read_journal
from steps.track.client import CHILD, METAFLOW_RUN, OUTPUT_HASH, RUN, VERSION, TrackingStore, cut, locked, waiting
from steps.track.notes import run_name, run_note, step_note
from steps.track.outages import TrackingRefusedError, failures_of
from steps.track.registry import Registry
from steps.track.wandb import Mirror, mirror_of

# isort: split
# After `steps.track.client`, which sets what MLflow reads once.
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.entities import Run as Logged

_LINES: Final = "chess_grpo.lines"
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
_LONGEST_DIGEST: Final = 36
_METRICS_PER_CALL: Final = 500  # MLflow takes 1,000; a call costs 28 ms whether it carries one or many.
_PARAMS_PER_CALL: Final = 100
_FINETUNE: Final = "finetune"
_SECONDS_BETWEEN: Final = 5.0
_SECONDS_AFTER_OUTAGE: Final = 30.0
_SECONDS_AT_END: Final = 30.0


def publish(run: Run, store: Store, machine: Machine, *, task: tuple[str, str] | None = None) -> str:
    """Log what the run's tracking store lacks of it, and return why something is not logged yet; empty when everything is.

    It is idempotent, and several processes may do it at once. It raises nothing of the tracking store.

    Args:
        run: its records as they are now.
        store: has the outputs.
        machine: says how the run's tracking store is reached.
        task: step and part that are to be logged, without others and without the run's end; None for all.
    """
    try:
        view = _View(run, store, machine)
        with view.asking(f"run {run.name}"), locked(view.locks / f"{run.name}.lock"):
            view.publish(task)
    except PlainError as error:
        return str(error)
    return "; ".join(view.problems)


def publish_all(machine: Machine) -> dict[str, str]:
    """Publish all runs of the machine's store that are not logged yet; return run -> why something is not, empty when all is."""
    store, found, away = Store.of(machine), dict[str, str](), dict[str, str]()
    for run in reversed(list(Runs(store).unpublished())):  # In their order: the registry compares a policy with those before it.
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
    """A run in its tracking store."""

    def __init__(self, run: Run, store: Store, machine: Machine) -> None:
        self._run, self._store, self._tracking = run, store, TrackingStore.of_run(run.facts["tracking"], machine)
        self.locks = machine.home / "tracking"
        self._key = f"{run.name}@{round(1_000 * run.started)}"
        self.problems: list[str] = []
        """What was refused, or is not there after it was sent."""

    def publish(self, task: tuple[str, str] | None) -> None:
        """Log the run with this task, or with all, and if it is over its end."""
        parent = self._parent()
        for name, attempt in self._run.latest().items():
            if task in (None, name) and not attempt.is_published and attempt.step not in (STEPS[0], STEPS[-1]):
                self._attempt(attempt, parent.info.run_id)
        self._set_status(parent, self._run.status, self._run.ended)
        if task is not None or self._run.status == "running":
            return
        if self._run.status == "finished" and self._results is not None and _REGISTERED not in parent.data.tags:
            # Of runs of one disk that end together the later one sees what the earlier one has registered.
            with self._taking("the policies of `select`"), locked(self.locks / "registry.lock"):
                peak, champion = Registry(self._tracking, self._run.facts["preset"]).enter(self._run, self._results, self._store, parent)
                print(f"registry: {peak}\nregistry: {champion}", flush=True)
                self._describe(parent, {"chess_grpo.peak": peak, _REGISTERED: champion})
        if not self.problems:
            self._run.set_published()

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Raise the errors of `steps.track.outages` in the block."""
        with failures_of(self._tracking.address, what):
            yield

    @contextmanager
    def _taking(self, what: str) -> Iterator[None]:
        """Note what the store refuses, and what is damaged here, and go on with the rest."""
        try:
            with self.asking(what):
                yield
        except (TrackingRefusedError, CorruptError) as error:
            self.problems.append(str(error))

    @cached_property
    def _results(self) -> Results | None:
        output = self._run.output_of("report")
        return None if output is None else read_results(self._store.file(output, RESULTS))

    def _parent(self) -> Logged:
        facts = self._run.facts
        parent = self._one(RUN, self._key, facts["label"], self._run.started, {"chess_grpo.step": "flow"})
        tags = {
            **facts["tags"],
            METAFLOW_RUN: self._run.name,
            "chess_grpo.preset": facts["preset"],
            "chess_grpo.command": facts["command"],
            "mlflow.source.name": FLOW_FILE,
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": str(facts["code"].get("commit", "")),
            _NOTE: run_note(self._run, "" if self._results is None else description(self._results)),
        }
        if self._results is not None:
            tags |= _verdict_tags(self._results, facts["label"])
        if _TEXTS not in parent.data.tags:
            for name, text in facts["texts"].items():
                with self._taking(f"the file {name}"):
                    self._tracking.client.log_text(parent.info.run_id, text, name)
            tags |= {_TEXTS: ", ".join(facts["texts"])}
        self._describe(parent, tags, _params(facts["settings"]))
        return parent

    def _attempt(self, attempt: Attempt, parent: str) -> None:
        """Log what the store lacks of an attempt; note that it has all, once the attempt is over and its rows were counted."""
        num_problems, declared = len(self.problems), step_of(attempt.step)
        name = run_name(attempt.step, attempt.part)
        key = f"{self._key}/{attempt.step}/{attempt.part}"
        child = self._one(CHILD, key, name, attempt.started, {_PARENT: parent, "chess_grpo.step": attempt.step})
        tags = {_PARENT: parent, METAFLOW_RUN: self._run.name, VERSION: attempt.version, _NOTE: step_note(declared, attempt)}
        with self._taking(f"rows of {attempt.step}"):
            rows = journal_of(attempt, self._store)
            new = rows[int(child.data.tags.get(_LINES, 0)) :]
            self._log(parent, _curves(attempt.step, new))
            self._log(child.info.run_id, _metrics(new))
            tags[_LINES] = str(len(rows))
            if attempt.ended is not None:
                self._settle(child.info.run_id, _metrics(rows))
                self._settle(parent, [*_curves(attempt.step, rows), *_headlines(rows, declared.headlines)])
        if attempt.ended is not None:
            tags |= self._send_pages(child, parent, attempt, declared.pages)
        self._describe(child, tags)
        self._set_status(child, attempt.status, attempt.ended)
        if attempt.ended is not None and len(self.problems) == num_problems:
            attempt.set_published()

    def _settle(self, run_id: str, metrics: Sequence[Metric]) -> None:
        """Send what the store lacks of these rows, by its own count, and note what it lacks then."""
        if missing := self._missing(run_id, metrics):
            self._log(run_id, missing)
            if still := self._missing(run_id, missing):
                names = ", ".join(sorted({metric.key for metric in still})[:3])
                self.problems.append(f"the tracking store {self._tracking.address} lacks {len(still):,} rows that it was sent, of {names}")

    def _missing(self, run_id: str, metrics: Sequence[Metric]) -> list[Metric]:
        """Return the rows of the names and steps of which the store has fewer than these.

        Values are not compared, for a database may round; nor times, for a machine that goes on from another's progress has its own.
        """
        distinct = {(metric.key, metric.step, metric.timestamp, repr(metric.value)) for metric in metrics}
        wanted = Counter((key, step) for key, step, *_ in distinct)
        there = Counter(
            (metric.key, metric.step)
            for key in dict.fromkeys(metric.key for metric in metrics)
            for metric in self._tracking.client.get_metric_history(run_id, key)
        )
        lacking = wanted - there
        return [metric for metric in metrics if (metric.key, metric.step) in lacking]

    def _send_pages(self, child: Logged, parent: str, attempt: Attempt, names: Iterable[str]) -> dict[str, str]:
        """Log the pages of an output that is not logged yet, and return the tags that say which it is."""
        output, run_id = attempt.output, child.info.run_id
        if output is None or child.data.tags.get(OUTPUT_HASH) == output["output_hash"]:
            return {}
        tags = {"chess_grpo.reused": str(output["reused"])}
        for name in names:
            with self._taking(f"the page {name} of {attempt.step}"):
                try:
                    path = self._store.file(output, name)
                except FileNotFoundError:
                    continue
                with waiting():
                    self._tracking.client.log_artifact(run_id, str(path))
                if name == FINDINGS:
                    tags["chess_grpo.findings"] = str(read_json(path)["tag"])
        if BOARDS in (files := self._store.manifest(output)["files"]):
            with self._taking(f"the dataset of {attempt.step}"):
                self._send_dataset((run_id, parent), output, files[BOARDS])
        return tags | {OUTPUT_HASH: output["output_hash"]}  # The last: it says that the others are there.

    def _send_dataset(self, run_ids: Iterable[str], output: StepOutput, digest: str) -> None:
        """Log an output's boards as the dataset of these runs."""
        report = read_json(self._store.file(output, REPORT))
        profile = {"num_rows": report["rows"]} | {name: report[name] for name in ("phases", "splits", "sources", "labels")}
        name = f"{self._run.facts['preset']} boards, {report['rows']:,}"
        source = json.dumps({"uri": f"{self._store.place(output)}/{BOARDS}"})
        made = Dataset(name, digest[:_LONGEST_DIGEST], "local", source, profile=json.dumps(profile))
        for run_id in run_ids:
            self._tracking.client.log_inputs(run_id, [DatasetInput(made, [InputTag("mlflow.data.context", "training")])])

    def _one(self, tag: str, key: str, name: str, started: float, tags: Mapping[str, str]) -> Logged:
        """Return the run with this key, which is created when there is none; of two that were created at once the smaller id stays."""
        client, experiment, condition = self._tracking.client, self._tracking.experiment, f"tags.`{tag}` = '{key}'"
        found = client.search_runs([experiment], condition)
        if not found:
            made = {tag: key, **tags}
            client.create_run(experiment, start_time=round(1_000 * started), run_name=cut(name, _LONGEST_KEY), tags=made)
            found = client.search_runs([experiment], condition)
        first, *doubles = sorted(found, key=lambda each: str(each.info.run_id))
        for double in doubles:
            client.delete_run(double.info.run_id)
        return first

    def _describe(self, run: Logged, tags: Mapping[str, str], params: Mapping[str, str] | None = None) -> None:
        """Set the tags and parameters that the run does not have yet, cut to what every store takes; the whole text is a file then."""
        client, run_id = self._tracking.client, run.info.run_id
        known = run.data.params
        new = [Param(cut(name, _LONGEST_KEY), cut(value, _LONGEST_PARAM)) for name, value in (params or {}).items()]
        new = [param for param in new if param.key not in known]
        for start in range(0, len(new), _PARAMS_PER_CALL):
            with self._taking("parameters"):
                client.log_batch(run_id, params=new[start : start + _PARAMS_PER_CALL])
        longest = {_RUN_NAME: _LONGEST_KEY}
        for name, value in tags.items():
            short = cut(value, longest.get(name, _LONGEST_TAG))
            if run.data.tags.get(name) == short:
                continue
            with self._taking(f"the tag {name}"):
                if short != value:
                    client.log_text(run_id, value, f"whole/{PurePosixPath(name).name}.txt")
                client.log_batch(run_id, tags=[RunTag(cut(name, _LONGEST_KEY), short)])

    def _set_status(self, run: Logged, status: Status, ended: float | None) -> None:
        wanted = _STATUS[status]
        if run.info.status == wanted:
            return
        if ended is None:
            self._tracking.client.update_run(run.info.run_id, status=wanted)
        else:
            self._tracking.client.set_terminated(run.info.run_id, status=wanted, end_time=round(1_000 * ended))

    def _log(self, run_id: str, metrics: Sequence[Metric]) -> None:
        for start in range(0, len(metrics), _METRICS_PER_CALL):
            self._tracking.client.log_batch(run_id, metrics=metrics[start : start + _METRICS_PER_CALL])


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
    if decision.claims and decision.ladder_gain is not None:
        short = short_verdict(decision.verdict, decision.claims[0].interval.estimate, decision.ladder_gain.finding)
    return {
        "chess_grpo.verdict": decision.verdict,
        "chess_grpo.verdict_sentence": decision.sentence,
        "chess_grpo.peak_step": str(decision.peak_step),
        _RUN_NAME: f"{short} · {label}",
    }


class Publisher(threading.Thread):
    """Publishes an attempt while its step works; a tracker that is away costs one line of warning and no time of the step."""

    def __init__(self, machine: Machine, attempt: Attempt) -> None:
        """Prepare; `start` begins."""
        super().__init__(name="tracking", daemon=True)
        self._machine, self._attempt, self._store = machine, attempt, Store.of(machine)
        self._is_over = threading.Event()
        self._has_warned = False
        self._mirror: Mirror | None = None

    def start(self) -> None:
        """Begin, and mirror to W&B if that is on."""
        self._mirror = mirror_of(self._machine, self._attempt, self._store, journal_of)
        if self._mirror is not None:
            self._mirror.start()
        super().start()

    def finish(self, seconds: float = _SECONDS_AT_END) -> None:
        """Publish the attempt as it ended, within a time limit, and warn if that was not possible."""
        self._is_over.set()
        if self._mirror is not None:
            self._mirror.over.set()
        self.join(seconds)
        if self.is_alive():
            self._warn(f"it did not finish within {seconds:.0f} s")
        if self._mirror is not None:
            self._mirror.finish()

    def run(self) -> None:
        """Publish until `finish` was called, and then once more."""
        pause = 0.0
        while not self._is_over.wait(pause):
            pause = _SECONDS_BETWEEN if self._publish() else _SECONDS_AFTER_OUTAGE
        self._publish()

    def _publish(self) -> bool:
        """Publish what there is, and return whether all of it is logged."""
        try:
            run = Runs(self._store).get(self._attempt.run)
            assert run is not None
            reason = publish(run, self._store, self._machine, task=(self._attempt.step, self._attempt.part))
        except Exception as error:  # noqa: BLE001 - No error of a tracker may end a step; it is reported as not logged.
            reason = f"{type(error).__name__}: {error}"
        if reason:
            self._warn(reason)
        return not reason

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            later = "the run goes on, and a later step, the next run or `chess-grpo track` logs it"
            print(f"{self._attempt.step}: WARNING: not logged to MLflow yet ({reason}): {later}", flush=True)
