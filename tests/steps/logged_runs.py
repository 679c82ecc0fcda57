"""Runs as the tracking store is told of them, by the project's own tracker, with nothing computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo.base.files import sha256_json, write_json
from grpo.metrics.table import Record
from grpo.settings.roles import compared_settings
from grpo.settings.tree import read_settings
from steps.runtime.machine import Machine
from steps.step_io.aliases import CHAMPION, PEAK
from steps.step_io.names import FINDINGS, HISTORY, RESULTS
from steps.step_io.results import FORMAT, measurements
from steps.store.outputs import StepOutput, Store
from steps.tracking.registry import Choice, Chosen
from steps.tracking.tags import COMMAND, ENGINE, FOUND, PEAK_STEP, SENTENCE, SOURCES, VERDICT
from steps.tracking.tracker import Tracker

STEPS = ("join_boards", "calibrate", "pretrain", "baseline", "finetune", "select", "report")
BASELINE = {"heldout/regret_best": 0.08, "heldout/regret_best_stderr": 0.005}


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """A run to be told of."""

    name: str
    settings: str = "smoke"
    initial_weights: str = "start-a"
    dataset: str = "boards-a"
    ladder: str = "ladder-a"
    """Hash of the output of `calibrate`."""
    engine: str = "Stockfish 15.1"
    score: tuple[float, float, float] = (0.6, 0.55, 0.65)
    """Of the confirmation, as played, with its interval."""
    rating: tuple[float, float, float] = (700.0, 600.0, 800.0)
    ladder_gain: tuple[float, float, float] = (10.0, -20.0, 40.0)
    sentence: str = "Step 120 beats its own start, but was not shown to be stronger than it against everybody else: the two disagree."
    pretrained_rating: tuple[float, float, float] = (500.0, 400.0, 600.0)
    verdict: str = "better"
    regret_after: float = 0.05
    candidate: int = 120
    champion_step: int = 120
    is_beaten: bool = True
    reused: tuple[str, ...] = ()
    """Steps whose output is of the run before, and so has its hash."""
    last: str = "report"
    """The last step that was done."""
    findings: Sequence[Mapping[str, Any]] | None = None
    sources: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


def machine_of(home: Path, tracking: str | None = None) -> Machine:
    return Machine(stockfish="none", home=home, tracking_uri=tracking or f"sqlite:///{home / 'mlflow.db'}", device="cpu", num_threads=1)


def log_run(machine: Machine, run: LoggedRun, *, ends: bool = True) -> str:
    """Tell the store of a run, as the steps do it, and return MLflow's id."""
    tracker, store = Tracker(machine), Store(machine.home)
    settings = read_settings(run.settings).model_dump(mode="json")
    tags = {"git.commit": "0123456789abcdef", "git.dirty": False, ENGINE: run.engine, **run.tags}
    tags = {**tags, COMMAND: "python flows/chess_grpo.py run"}
    parent = tracker.start_flow_run(metaflow_run=run.name, settings=settings, tags=tags, note="")
    outputs: dict[str, str] = {}
    for step in STEPS[: STEPS.index(run.last) + 1]:
        with tracker.child(parent, step, {"metaflow.run": run.name}) as child:
            output = _output(store, step, run, outputs, settings)
            outputs[step] = output["output_hash"]
            if step == "report":
                child.output(output, store.folder(step, output["version"]), is_archived=True)
            for record in _records(step, run):
                child.log(record)
            if step == "finetune" and run.findings is not None:
                child.tag_flow_run({FOUND: ",".join(each["name"] for each in run.findings) or "healthy"})
            if step == "select":
                child.tag_flow_run({PEAK_STEP: run.candidate, VERDICT: run.verdict, SENTENCE: run.sentence})
                peak = Choice(policy_step=run.candidate, initial_weights=run.initial_weights, low=run.score[1])
                champion = Choice(policy_step=run.champion_step, initial_weights=run.initial_weights, low=None)
                seen = None if not run.is_beaten else _champion(tracker)
                child.choose(Chosen(flow_run=parent, description="", peak=peak, champion=champion, is_beaten=run.is_beaten, seen=seen))
            if step == "join_boards" and run.sources:
                child.tag({SOURCES: run.sources})
            child.finished(output)
    if ends:
        tracker.end_flow_run(parent, {})
    return parent


def made_version(step: str, run: str) -> str:
    """Return the version of the output that a step of a run made."""
    return sha256_json({"step": step, "run": run})[:24]


def _champion(tracker: Tracker) -> int | None:
    from steps.tracking.registry import Registry

    held = Registry(tracker).named(CHAMPION)
    return None if held is None else held.number


def _output(store: Store, step: str, run: LoggedRun, outputs: Mapping[str, str], settings: Mapping[str, Any]) -> StepOutput:
    given = {"join_boards": run.dataset, "calibrate": run.ladder, "pretrain": run.initial_weights}
    if step in given:
        return StepOutput(step=step, version=f"v-{step}", output_hash=given[step], reused=step in run.reused)
    if step in run.reused:
        return StepOutput(step=step, version=f"v-{step}", output_hash=f"earlier-{step}", reused=True)
    name = made_version(step, run.name)
    with store.writing(step, name, {"parts": {"step": step, "run": run.name}}) as folder:
        (folder / "it").write_text(run.name)
        if step == "select":
            (folder / CHAMPION).mkdir()
            (folder / CHAMPION / "weights").write_text(run.name)
            (folder / PEAK).mkdir()
            (folder / PEAK / "weights").write_text(run.name)
        if step == "finetune" and run.findings is not None:
            (folder / FINDINGS).parent.mkdir(exist_ok=True)
            write_json(folder / FINDINGS, {"verdict": "findings" if run.findings else "healthy", "findings": list(run.findings)})
        if step == "report":
            write_json(folder / RESULTS, _document(run, outputs, settings))
            (folder / HISTORY).touch()
    found = store.find(step, name)
    assert found is not None
    return StepOutput(step=step, version=name, output_hash=found["output_hash"], reused=False)


def _document(run: LoggedRun, outputs: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return as much of the results as commands read."""
    of_steps = {step: [record for record in _records(step, run) if step != "finetune" or record.step == run.candidate] for step in outputs}
    return {
        "format": FORMAT,
        "measurements": measurements(
            {step: {name: value for record in records for name, value in record.metrics.items()} for step, records in of_steps.items()},
            outputs=outputs,
            settings=compared_settings(settings),
            engine=run.engine,
            num_games={},
        ),
        "decision": _decision(run),
        "findings": None if run.findings is None else {"findings": list(run.findings)},
    }


def _decision(run: LoggedRun) -> dict[str, Any]:
    gain = dict(zip(("value", "low", "high"), run.ladder_gain, strict=True))
    names = ("rating", "low", "high")
    return {
        "candidate_step": run.candidate,
        "confirmation_best_moves": dict(zip(("score", "low", "high"), run.score, strict=True)),
        "ladder_gain": {"played": gain, "adjudicated": gain},
        "ladder": dict(zip(names, run.rating, strict=True)),
        "ladder_initial": dict(zip(names, run.pretrained_rating, strict=True)),
    }


def _records(step: str, run: LoggedRun) -> list[Record]:
    if step == "baseline":
        matches = {f"baseline/score_{who}{end}": value for who in ("random", "engine") for end, value in _ends((0.9, 0.8, 0.95))}
        return [Record(0, {**BASELINE, **matches, **{f"baseline/rating{end}": value for end, value in _ends(run.pretrained_rating)}})]
    if step == "finetune":
        rows = [(run.candidate - 60, 0.07), (run.candidate, run.regret_after), (run.candidate + 60, 0.06)]
        return [Record(at, {"heldout/regret_best": regret, "heldout/regret_best_stderr": 0.005}) for at, regret in rows]
    if step == "select":
        adjudicated = tuple(min(1.0, part + 0.1) for part in run.score)
        kinds = {"best": run.score, "adjudicated": adjudicated, "sampled": (0.55, 0.5, 0.6)}
        scores = {f"selection/score_{kind}{end}": value for kind, each in kinds.items() for end, value in _ends(each)}
        placed = {
            "rating": run.rating,
            "rating_pretrained": run.pretrained_rating,
            "ladder_gain": run.ladder_gain,
            "ladder_gain_adjudicated": run.ladder_gain,
        }
        scores |= {f"selection/{kind}{end}": value for kind, each in placed.items() for end, value in _ends(each)}
        return [Record(run.candidate, scores)]
    return []


def _ends(values: Sequence[float]) -> list[tuple[str, float]]:
    return list(zip(("", "_low", "_high"), values, strict=True))
