"""The steps as the flow calls them: each looks for its version in the store, works if it must, and tells the tracker.

What a step computes is in a module of its own, which knows neither store nor tracker.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict

from grpo.config import Settings
from grpo.content import CorruptError, read_json, sha256_file
from grpo.engine import EngineIdentity, identify
from grpo.errors import PlainError
from steps.machine import Machine
from steps.preflight import PreflightError, preflight, preflight_table
from steps.store import StepOutput, Store
from steps.tracking import PEAK_STEP, ChildRun, Origin, Tracker
from steps.versions import step_version
from steps.work import HISTORY, Sink, TerminalSink, Work, read_history

BEFORE_FINETUNE: Final = ("join_boards", "check_boards", "pretrain", "baseline")
"""Steps whose output a resumed run takes from its origin."""


class ResumeError(PlainError, RuntimeError):
    """The origin cannot be gone on from with these settings or on this machine; the message lists each difference."""


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


def start(settings: Mapping[str, Any], code: Mapping[str, Any], *, metaflow_run: str, is_fresh: bool, resume_from: str | None) -> Job:
    """Check all that can be checked before any work, open the run, and return what the other steps need.

    Raises PreflightError with the table when something is missing, OriginError or ResumeError when there is nothing to go on from.
    """
    machine, typed = Machine.here(), _typed(settings)
    findings, engine = preflight(typed, machine)
    print(f"Preflight\n{preflight_table(findings)}", flush=True)
    failed = [finding for finding in findings if not finding.is_fine]
    if failed or engine is None:
        raise PreflightError(f"cannot start:\n{preflight_table(failed)}")
    tracker = Tracker(machine)
    origin = tracker.origin(resume_from) if resume_from else None
    if origin is not None:
        _refuse_unlike(origin, typed, engine, Store(machine.home))
        print(f"Going on from {origin['name']}: run {origin['metaflow_run']}, step {origin['policy_step']:,}", flush=True)
    run_id = tracker.start_flow_run(
        metaflow_run=metaflow_run,
        settings=settings,
        tags=_code_tags(code)
        | {"chess_grpo.engine": engine}
        | ({} if origin is None else {"chess_grpo.origin": origin["metaflow_run"], "chess_grpo.origin_step": origin["policy_step"]}),
        note=f"`python flows/chess_grpo.py run`, Metaflow run {metaflow_run}",
    )
    return Job(
        settings=dict(settings),
        code=dict(code),
        metaflow_run=metaflow_run,
        mlflow_run=run_id,
        is_fresh=is_fresh,
        origin=origin,
    )


def build_boards(job: Job, task: int) -> StepOutput:
    """Make one task's share of the dataset's units."""
    from steps.boards import build_units

    machine, settings = Machine.here(), _typed(job["settings"])
    if job["origin"] is not None:
        return job["origin"]["outputs"]["join_boards"]  # The join hands on the origin's boards: there is nothing to build.
    engine = identify(machine.stockfish)
    units = range(task, settings.boards.num_units, settings.boards.num_tasks)
    return _run(
        job,
        machine,
        step="build_boards",
        module="steps.boards",
        settings=_boards_slice(settings) | {"units": list(units)},
        inputs=_source_inputs(settings, engine),
        work=lambda work: build_units(settings, units, engine, machine.stockfish, work),
    )


def join_boards(job: Job, parts: Sequence[StepOutput]) -> StepOutput:
    """Join the parts into the dataset, with exact quotas and no board twice."""
    from steps.boards import BOARDS, REPORT, join_units

    machine, settings = Machine.here(), _typed(job["settings"])
    store = Store(machine.home)

    def publish(folder: Path, child: ChildRun) -> None:
        report = read_json(folder / REPORT)
        digest = sha256_file(folder / BOARDS)
        child.dataset(digest=digest, source=(folder / BOARDS).as_uri(), profile={"rows": report["rows"], "phases": report["phases"]})
        child.tag({"chess_grpo.dataset": digest})
        child.file(folder / REPORT)

    hashes = [_parquet_hash(store.open(part)) for part in parts] if job["origin"] is None else []
    return _run(
        job,
        machine,
        step="join_boards",
        module="steps.boards",
        settings=_boards_slice(settings),
        # The units' own hashes, not those of the tasks that made them: how many tasks there were changes nothing.
        inputs={"engine": str(identify(machine.stockfish))} | {name: digest for part in hashes for name, digest in part.items()},
        work=lambda work: join_units(settings, [store.open(part) for part in parts], work),
        publish=publish,
    )


def check_boards(job: Job, boards: StepOutput) -> StepOutput:
    """Gate the dataset; raises ChecksError with a readable report when an expectation does not hold."""
    from steps.checking import REPORT, check_dataset

    machine, settings = Machine.here(), _typed(job["settings"])
    store = Store(machine.home)
    return _run(
        job,
        machine,
        step="check_boards",
        module="steps.checking",
        settings={"boards": settings.boards.model_dump(mode="json", exclude={"num_tasks"})},
        inputs={"boards": boards["output_hash"]},
        work=lambda work: check_dataset(settings, store.open(boards), work),
        publish=lambda folder, child: child.file(folder / REPORT),
    )


def pretrain(job: Job, boards: StepOutput) -> StepOutput:
    """Imitate until the validation loss stops falling."""
    from steps.device import device_facts, torch_device
    from steps.pretraining import REPORT, pretrain_policy

    machine, settings = Machine.here(), _typed(job["settings"])
    store = Store(machine.home)
    return _run(
        job,
        machine,
        step="pretrain",
        module="steps.pretraining",
        settings=settings.model_dump(mode="json", include={"seed", "policy", "pretrain"}),
        inputs={"boards": boards["output_hash"], "device": device_facts(machine)},
        work=lambda work: pretrain_policy(settings, store.open(boards), torch_device(machine), work),
        shown=("imitation/validation_loss", "imitation/top1", "imitation/entropy"),
        publish=lambda folder, child: child.file(folder / REPORT),
    )


def baseline(job: Job, boards: StepOutput, pretrained: StepOutput) -> StepOutput:
    """Measure the pretrained policy against Stockfish before GRPO touches it."""
    from steps.baseline import REPORT, play_baseline
    from steps.device import device_facts, torch_device

    machine, settings = Machine.here(), _typed(job["settings"])
    store = Store(machine.home)
    return _run(
        job,
        machine,
        step="baseline",
        module="steps.baseline",
        settings=settings.model_dump(mode="json", include={"seed", "evaluation"}),
        inputs={
            "boards": boards["output_hash"],
            "pretrained": pretrained["output_hash"],
            "engine": str(identify(machine.stockfish)),
            "device": device_facts(machine),
        },
        work=lambda work: play_baseline(
            settings,
            boards=store.open(boards),
            pretrained=store.open(pretrained),
            engine_path=machine.stockfish,
            num_processes=machine.num_threads,
            device=torch_device(machine),
            work=work,
        ),
        shown=("baseline/score_random", "baseline/score_engine", "heldout/regret_best"),
        publish=lambda folder, child: child.file(folder / REPORT),
    )


def finetune(job: Job, boards: StepOutput, pretrained: StepOutput, sinks: Sequence[Sink] = ()) -> StepOutput:
    """Fine-tune by GRPO, from the pretrained policy or from the origin's checkpoint."""
    from steps.device import device_facts, torch_device
    from steps.finetuning import REPORT, finetune_policy

    machine, settings = Machine.here(), _typed(job["settings"])
    store = Store(machine.home)
    checkpoint = _origin_checkpoint(job["origin"], store)
    facts = {
        "settings": job["settings"],
        "boards": boards["output_hash"],
        "pretrained": pretrained["output_hash"],
        "origin": job["origin"],
        "engine": str(identify(machine.stockfish)),
    }
    return _run(
        job,
        machine,
        step="finetune",
        module="steps.finetuning",
        settings=settings.model_dump(mode="json", include={"seed", "policy", "grpo"}),
        inputs={
            "boards": boards["output_hash"],
            "pretrained": pretrained["output_hash"],
            "checkpoint": "" if checkpoint is None else str(read_json(checkpoint / "manifest.json")["output_hash"]),
            "device": device_facts(machine),
        },
        work=lambda work: finetune_policy(
            settings,
            boards=store.open(boards),
            pretrained=store.open(pretrained),
            checkpoint=checkpoint,
            facts=facts,
            device=torch_device(machine),
            work=work,
        ),
        shown=("heldout/regret_best", "heldout/regret_sampled", "heldout/entropy"),
        sinks=sinks,
        publish=lambda folder, child: child.file(folder / REPORT),
    )


def select(job: Job, pretrained: StepOutput, finetuned: StepOutput) -> StepOutput:
    """Let checkpoints compete, and register peak and champion."""
    from steps.device import device_facts, torch_device
    from steps.selecting import CHAMPION, PEAK, REPORT, select_champion

    machine, settings = Machine.here(), _typed(job["settings"])
    store, tracker = Store(machine.home), Tracker(machine)

    def publish(folder: Path, child: ChildRun) -> None:
        decision = read_json(folder / REPORT)
        for part in (REPORT, PEAK, CHAMPION):
            child.file(folder / part, None if part == REPORT else part)
        text = f"{decision['verdict']}; best moves {decision['confirmation_best_moves']['text']}"
        parent = job["mlflow_run"]
        tracker.register(child, PEAK, parent=parent, policy_step=decision["peak_step"], description=text, aliases=("peak",))
        # The registry's champion gives way only to a policy that was shown to be better than its own start.
        is_shown = decision["champion_step"] > 0 or not tracker.has_alias("champion")
        aliases = ("champion",) if is_shown else ()
        tracker.register(child, CHAMPION, parent=parent, policy_step=decision["champion_step"], description=text, aliases=aliases)
        tracker.tag_flow_run(parent, {PEAK_STEP: decision["peak_step"], "chess_grpo.verdict": decision["verdict"]})

    return _run(
        job,
        machine,
        step="select",
        module="steps.selecting",
        settings=settings.model_dump(mode="json", include={"seed", "evaluation", "selection"}),
        inputs={
            "pretrained": pretrained["output_hash"],
            "finetuned": finetuned["output_hash"],
            "engine": str(identify(machine.stockfish)),
            "device": device_facts(machine),
        },
        work=lambda work: select_champion(
            settings,
            pretrained=store.open(pretrained),
            finetuned=store.open(finetuned),
            engine_path=machine.stockfish,
            num_processes=machine.num_threads,
            device=torch_device(machine),
            work=work,
        ),
        shown=("selection/score_best", "selection/score_best_low", "selection/score_best_high", "selection/score_sampled"),
        publish=publish,
    )


def report(job: Job, outputs: Mapping[str, StepOutput]) -> StepOutput:
    """Write the run's story: comparison, phases, curves, and where everything is."""
    from steps.reporting import PAGE, write_report

    machine, settings = Machine.here(), _typed(job["settings"])
    store = Store(machine.home)
    return _run(
        job,
        machine,
        step="report",
        module="steps.reporting",
        settings=settings.model_dump(mode="json"),
        inputs={step: output["output_hash"] for step, output in outputs.items()},
        work=lambda work: write_report({step: store.open(output) for step, output in outputs.items()}, work),
        publish=lambda folder, child: child.file(folder / PAGE),
    )


def end(job: Job, selected: StepOutput, reported: StepOutput) -> str:
    """Close the run and return the words that end it: verdict, and where champion, report and UI are."""
    from steps.reporting import PAGE
    from steps.selecting import CHAMPION, REPORT

    machine = Machine.here()
    store, tracker = Store(machine.home), Tracker(machine)
    decision = read_json(store.open(selected) / REPORT)
    tracker.end_flow_run(job["mlflow_run"], {"chess_grpo.verdict": decision["verdict"]})
    return "\n".join(
        [
            f"GRPO against the pretrained policy: {decision['verdict']} (candidate: step {decision['candidate_step']:,})",
            f"  best moves     {decision['confirmation_best_moves']['text']}",
            f"  sampled, T = 1 {decision['confirmation_sampled_moves']['text']}",
            f"Champion: {store.folder('select', selected['version']) / CHAMPION}",
            f"Report:   {store.folder('report', reported['version']) / PAGE}",
            f"Card:     python flows/chess_grpo.py card view {job['metaflow_run']}/report",
            f"UI:       make ui   (MLflow at {tracker.uri})",
        ]
    )


def _run(
    job: Job,
    machine: Machine,
    *,
    step: str,
    module: str,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
    work: Callable[[Work], None],
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
        shown: metrics to print.
        sinks: who else takes the records.
        publish: logs what people want to open in the tracker.
    """
    store, tracker = Store(machine.home), Tracker(machine)
    version = step_version(step=step, module=module, settings=settings, inputs=inputs, code=job["code"])
    tags = _code_tags(job["code"]) | {"metaflow.run": job["metaflow_run"], "metaflow.step": step}
    with tracker.child(job["mlflow_run"], step, tags) as child:
        found = _found(job, store, step, version.version)
        if found is None:
            terminal = TerminalSink(step, shown, lambda text: print(text, flush=True))
            facts = {"parts": version.parts, "code": job["code"]}
            with store.writing(step, version.version, facts) as folder:
                working = Work(folder, (terminal, child, *sinks))
                work(working)
                working.write_history()
            written = store.find(step, version.version)
            assert written is not None
            found = StepOutput(**{**written, "reused": False})
        else:
            print(f"{step}: reusing version {found['version']}, output {found['output_hash'][:12]}", flush=True)
            for record in read_history(store.folder(step, found["version"])):
                child.take(record)
        folder = store.folder(step, found["version"])
        child.file(folder / "manifest.json")
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


def _refuse_unlike(origin: Origin, settings: Settings, engine: EngineIdentity, store: Store) -> None:
    """Raise ResumeError unless the origin's dataset and network are what these settings ask for.

    What may differ: everything of `grpo`, `evaluation` and `selection`. What it was made from is compared, not what it is called.
    """
    missing = [step for step in (*BEFORE_FINETUNE, "finetune", "select") if step not in origin["outputs"]]
    if missing:
        raise ResumeError(f"--resume-from {origin['name']}: run {origin['metaflow_run']} has no output of {', '.join(missing)}")
    wanted = {
        "join_boards": _boards_slice(settings),
        "pretrain": settings.model_dump(mode="json", include={"seed", "policy", "pretrain"}),
    }
    differences = []
    for step, now in wanted.items():
        then = _parts(store, origin["outputs"][step])["settings"]
        differences += [f"  {name}: origin {before!r}, now {after!r}" for name, before, after in _differences(then, now)]
    engine_then = _parts(store, origin["outputs"]["join_boards"])["inputs"]["engine"]
    if engine_then != str(engine):
        differences.append(f"  engine: origin {engine_then}, now {engine}")
    if differences:
        text = "\n".join(sorted(set(differences)))
        raise ResumeError(
            f"--resume-from {origin['name']}: run {origin['metaflow_run']} was made otherwise, and only grpo.*, evaluation.* and"
            f" selection.* may change:\n{text}\nGive the origin's settings (same preset and overrides), or start without --resume-from"
        )


def _parts(store: Store, output: StepOutput) -> dict[str, Any]:
    """Return what an output's version was made from."""
    store.open(output)
    return dict(store.manifest(output)["parts"])


def _differences(then: Any, now: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        names = sorted(then.keys() | now.keys())
        return [row for name in names for row in _differences(then.get(name), now.get(name), f"{prefix}.{name}" if prefix else name)]
    return [] if then == now or prefix == "policy.num_frozen_blocks" else [(prefix, then, now)]


def _origin_checkpoint(origin: Origin | None, store: Store) -> Path | None:
    """Return the verified checkpoint to go on from; None without an origin, or when that is the pretrained policy."""
    from steps.selecting import PEAK, PRETRAINED_STEP
    from steps.selecting import REPORT as DECISION

    if origin is None or origin["policy_step"] == PRETRAINED_STEP:
        return None
    selected = store.open(origin["outputs"]["select"])
    if read_json(selected / DECISION)["peak_step"] == origin["policy_step"]:
        return selected / PEAK
    from steps.finetuning import CHECKPOINTS

    return store.open(origin["outputs"]["finetune"]) / CHECKPOINTS / f"step-{origin['policy_step']:08d}"


def _typed(settings: Mapping[str, Any]) -> Settings:
    return Settings.model_validate(dict(settings))


def _boards_slice(settings: Settings) -> dict[str, Any]:
    """Return the settings that make the dataset; over how many tasks it is spread is not among them, nor where a file lies."""
    boards = settings.boards.model_dump(mode="json", exclude={"num_tasks", "path"})
    return {
        "seed": settings.seed,
        "boards": boards,
        "values": settings.values.model_dump(mode="json"),
        "heldout_depth": settings.evaluation.heldout_depth,
    }


def _source_inputs(settings: Settings, engine: EngineIdentity) -> dict[str, str]:
    if settings.boards.source != "pgn":
        return {"engine": str(engine)}
    path = Path(settings.boards.path)
    return {"engine": str(engine), "pgn": sha256_file(path), "pgn_name": path.name}  # The name is in each row; its folder is not.


def _parquet_hash(folder: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(folder.glob("unit-*.parquet"))}


def _code_tags(code: Mapping[str, Any]) -> dict[str, Any]:
    return {"git.commit": code["commit"], "git.dirty": code["is_dirty"]}
