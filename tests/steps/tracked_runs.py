"""Small runs with records, journals and policies as the flow leaves them, and what a tracking store has of them."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from doubles import saved_policy
from made_documents import made_results
from made_runs import FIRST, JOINED, facts_of
from mlflow.tracking import MlflowClient

from grpo.base.files import sha256_text, write_json, write_manifest
from grpo.metrics.records import Record
from grpo.settings.tree import Settings
from steps.names import CHECKPOINTS, REPORT, REPORT_PAGE, RESULTS
from steps.pages.results import Results
from steps.run.machine import Machine
from steps.run.records import Attempt, Run, Runs
from steps.run.step import registered_steps
from steps.run.store import Making, Store
from steps.run.work import Work
from steps.track.client import EXPERIMENT
from steps.track.notes import tracked_name
from steps.track.publish import publish
from steps.track.sender import journal_of

SETTINGS = Settings().model_dump(mode="json")
CANDIDATE_AT, OTHER_AT = 100, 250
"""Steps of the checkpoints that `made_documents` names. The candidate is champion and peak."""

_IDS = ("mlflow.user", "mlflow.parentRunId", "chess_grpo.run", "chess_grpo.child", "chess_grpo.logged")


class TrackedRun:
    def __init__(self, machine: Machine, name: str = "7", *, preset: str = "default", **facts: Any) -> None:
        self.machine, self.name, self.store = machine, name, Store.of(machine)
        self.seconds = 1.0
        """Durations in the journal, per step; equal runs may have others."""
        self.runs = Runs(self.store)
        known = {"preset": preset, "settings": SETTINGS, "label": f"{preset}, seed 0", "started": FIRST + int(name)}
        self.runs.begin_run(facts_of(name, machine, **known | facts))

    @property
    def run(self) -> Run:
        found = self.runs.get(self.name)
        assert found is not None
        return found

    def publish(self) -> str:
        return publish(self.run, self.store, self.machine)

    def begin(self, step: str, part: str = "") -> Attempt:
        return self.runs.begin(self.name, step, part, sha256_text(f"{self.name} {step} {part}")[:24])

    def work(self, attempt: Attempt, records: Iterable[Record]) -> None:
        with self.store.making(attempt.step, attempt.version) as making:
            self._say(making, making.progress, records)

    def step(
        self, step: str, records: Iterable[Record] = (), fill: Callable[[Path], None] | None = None, *, attempt: Any = None
    ) -> Attempt:
        attempt = attempt or self.begin(step)
        with self.store.making(step, attempt.version) as making, making.filling({"parts": {"step": step}, "code": {}}) as folder:
            work = self._say(making, folder, records)
            (fill or (lambda _: None))(folder)
            if not (folder / REPORT).exists():
                write_json(folder / REPORT, JOINED if step == "join_boards" else {"step": step})
            work.write_history()
        assert making.output is not None
        return attempt.end("finished", output=making.output)

    def _say(self, making: Making, folder: Path, records: Iterable[Record]) -> Work:
        work = Work(folder=folder, progress_folder=making.progress, settings=Settings(), machine=self.machine)
        for record in records:
            work.log(record)
            work.log(Record(record.step, {"time/rollout": self.seconds * record.step}), is_aside=True)
        return work

    def select(self, *, is_origin: bool = False, **decided: Any) -> None:
        """Do the last steps, with tiny policies; also all that a run needs that resumes from this one, if it is an origin."""
        for step in registered_steps() if is_origin else ():
            if step != "pretrain":
                self.step(step)
        self.step("pretrain", curve("imitation/validation_loss", 3), lambda folder: saved_policy(folder, 1))
        self.step("finetune", curve("grpo/entropy", 4), checkpoints)
        results = made_results(self.machine.home / "documents" / self.name)
        results = results.model_copy(update={"decision": results.decision.model_copy(update=decided)})
        self.step("select", [Record(results.decision.candidate_step or 0, {"selection/verdict_elo": 40.123456})], policies)
        self.step("report", fill=lambda folder: report(folder, results))
        self.begin("end").end("finished")


def curve(name: str, count: int, start: int = 1) -> list[Record]:
    return [Record(step, {name: 1.0 / step, "grpo/loss": float("nan") if step == 2 else 0.5}) for step in range(start, start + count)]


def checkpoints(folder: Path) -> None:
    for seed, step in enumerate((CANDIDATE_AT, OTHER_AT)):
        place = saved_policy(folder / CHECKPOINTS / f"step-{step:08d}", seed)
        write_manifest(place, {"kind": "checkpoint", "step": step})


def policies(folder: Path) -> None:
    write_json(folder / REPORT, {"step": "select", "champion_step": CANDIDATE_AT, "peak_step": CANDIDATE_AT})
    for seed, role in enumerate(("champion", "peak")):
        saved_policy(folder / role, seed)
    (folder / "peak" / "state.safetensors").write_text("the rest of a checkpoint")
    write_manifest(folder / "peak", {"kind": "checkpoint", "step": 100})


def report(folder: Path, results: Results) -> None:
    write_json(folder / RESULTS, results.model_dump(mode="json"))
    (folder / REPORT_PAGE).write_text("# Verdict")


def client_of(place: Path) -> MlflowClient:
    return MlflowClient(uri := f"sqlite:///{place / 'mlflow.db'}", registry_uri=uri)


def told(place: Path) -> dict[str, Any]:
    """Return all that a tracking store has of runs and registry, but for ids and times, by name of the run."""
    client = client_of(place)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    found = [] if experiment is None else client.search_runs([experiment.experiment_id])
    runs = {}
    for run in found:
        assert run.info.run_name not in runs, "no run is there twice"
        rows = {
            name: sorted(f"{each.step} {each.value}" for each in client.get_metric_history(run.info.run_id, name))
            for name in run.data.metrics
        }
        tags = {name: tag for name, tag in run.data.tags.items() if name not in _IDS}
        files = _files(place, run.info.run_id)
        runs[run.info.run_name] = {"status": run.info.status, "tags": tags, "params": run.data.params, "rows": rows, "files": files}
        runs[run.info.run_name]["inputs"] = [(each.dataset.name, each.dataset.digest) for each in run.inputs.dataset_inputs]
    models = client.search_registered_models()
    return {"runs": runs, "aliases": {model.name: dict(model.aliases) for model in models}}


def counts(run: TrackedRun) -> dict[str, Counter[str]]:
    """Return step -> metric -> number of rows in the journals."""
    found = {}
    for (step, _), attempt in run.run.latest().items():
        rows = journal_of(attempt, run.store)
        found[step] = Counter(tracked_name(name) for row in rows for name in row["record"] if name != "step")
    return {step: count for step, count in found.items() if count}


def forget(run: TrackedRun) -> None:
    """Delete what says that the tracking store has it."""
    client = client_of(run.machine.home)
    for found in client.search_runs(["1"], "tags.`chess_grpo.logged` != ''"):
        client.delete_tag(found.info.run_id, "chess_grpo.logged")
    for path in (run.machine.home / "marks" / run.name).glob("*.published"):
        path.unlink()


def _files(place: Path, run_id: str) -> list[str]:
    """Return the names of a run's files but for those of its policies, which are of MLflow."""
    roots = list(place.glob(f"**/{run_id}/artifacts"))
    found = (path.relative_to(root) for root in roots for path in root.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in found if path.parts[0] != "policies")


def rows_of(found: dict[str, Any], step: str) -> dict[str, int]:
    """Return metric -> number of its rows of a step, of what `told` has found."""
    [run] = [each for each in found["runs"].values() if each["tags"]["chess_grpo.step"] == step]
    return {name: len(points) for name, points in run["rows"].items()}
