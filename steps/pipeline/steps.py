"""The steps as the flow calls them: each looks for its version in the store, works if it must, and tells the tracker.

What a step computes is in a module of its own, which knows neither store nor tracker.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo.base.errors import PlainError
from grpo.base.files import MANIFEST, read_json, sha256_file
from grpo.engine.identity import identify
from grpo.policy.files import LANGUAGE
from grpo.settings.tree import Settings
from steps.nodes.sockets import ONLY_NODE, Node
from steps.pipeline.run_step import Job, code_tags, run_step
from steps.preflight.checks import PreflightError, preflight, preflight_table
from steps.runs.find_policy import FoundPolicy, find_policy
from steps.runtime.limits import refuse_several
from steps.runtime.machine import SHARED, Machine
from steps.step_io.aliases import CHAMPION, PEAK
from steps.step_io.names import BOARDS, DECISIONS, FINDINGS, LEARNABILITY, MODEL_CARD, PGN, REPORT, REPORT_PAGE, SUMMARY_PAGE
from steps.step_io.work import Sink, Work, read_history
from steps.store import settings_by_step
from steps.store.outputs import StepOutput, Store
from steps.store.versions import step_version
from steps.tracking import notes
from steps.tracking.launch import launch_of
from steps.tracking.registry import Choice, Chosen, Registry
from steps.tracking.tags import COMMAND, DATASET, ENGINE, FOUND, VERDICT
from steps.tracking.tracker import PEAK_STEP, PRESET, ChildRun, Tracker, TrackingAwayError

if TYPE_CHECKING:  # Torch comes with it, and most steps need none.
    from steps.nodes.team import Team


_SHOWN_OF_CLONING: Final = ("language/clone_loss", "language/clone_validation_loss", "language/parse_rate")
_SHOWN_OF_ANSWERS: Final = ("language/reward_mean", "language/parse_rate", "heldout/regret_best", "heldout/parse_rate")


def start(
    settings: Mapping[str, Any],
    code: Mapping[str, Any],
    *,
    metaflow_run: str,
    is_fresh: bool,
    resume_from: str | None,
    allow: str = "",
    num_nodes: int = 1,
) -> Job:
    """Check all that can be checked before any work, open the run, and return what the other steps need.

    Args:
        settings: the run's.
        code: from `describe_code`.
        metaflow_run: its id.
        is_fresh: make every output anew.
        resume_from: peak, champion, RUN or RUN/STEP to go on from, if any.
        allow: which of the changes that a resumed run is refused for are allowed, separated by commas.
        num_nodes: on how many machines it will train.

    Raises PreflightError with the table when something is missing, OriginError or ResumeError when there is nothing to go on from.
    """
    from steps.pipeline.resume import ResumeError, find_origin, take_over
    from steps.pipeline.resume_changes import recorded
    from steps.runtime.device import device_facts

    allowed = [name.strip() for name in allow.split(",") if name.strip()]
    if is_fresh and resume_from:
        raise ResumeError("--fresh and --resume-from: a resumed run takes its origin's boards and policy; give only one of the two")
    if allowed and not resume_from:
        raise ResumeError("--allow is for runs that go on from another: give --resume-from too, or leave it out")
    machine, typed, launch = Machine.here(), _typed(settings), launch_of(settings)
    if typed.policy.kind == LANGUAGE:
        refuse_several(num_nodes)
    findings, engine = preflight(typed, machine)
    print(f"Preflight\n{preflight_table(findings)}", flush=True)
    failed = [finding for finding in findings if not finding.is_fine]
    if failed or engine is None:
        raise PreflightError(f"cannot start:\n{preflight_table(failed)}")
    tracker, store = Tracker(machine), Store.of(machine)
    tags = code_tags(code) | {ENGINE: engine, PRESET: launch.preset, **notes.source_tags(code, machine)}
    tracker.deliver_left()
    origin = find_origin(resume_from, tracker, store) if resume_from else None
    if origin is not None:
        changes = take_over(origin, typed, engine, allowed=allowed, code=code, device=device_facts(machine), tracker=tracker, store=store)
        tags |= {"chess_grpo.origin": origin["metaflow_run"], "chess_grpo.origin_step": origin["policy_step"], **recorded(changes, allowed)}
        changed = "".join(f"\n  {change}" for change in changes)
        print(f"Going on from {origin['name']}: run {origin['metaflow_run']}, step {origin['policy_step']:,}{changed}", flush=True)
    options = (("--fresh", is_fresh, ""), ("--resume-from", resume_from, resume_from), ("--allow", allow, allow))
    words = [word for name, is_given, value in options if is_given for word in (name, value) if word]
    tags[COMMAND] = launch.command(words)
    head = notes.head(
        launch=launch,
        words=words,
        origin="" if origin is None else f"step {origin['policy_step']:,} of run {origin['metaflow_run']}",
        machine=machine,
        device=device_facts(machine),
        engine=str(engine),
        code=code,
        metaflow_run=metaflow_run,
        kind=typed.policy.kind,
    )
    run_id = tracker.start_flow_run(
        metaflow_run=metaflow_run,
        settings=settings,
        tags=tags,
        note=notes.begun(head, metaflow_run=metaflow_run),
        files={"settings.json": json.dumps(settings, indent=1) + "\n", "settings.toml": launch.text},
    )
    return Job(
        settings=dict(settings),
        code=dict(code),
        metaflow_run=metaflow_run,
        mlflow_run=run_id,
        is_fresh=is_fresh,
        origin=origin,
        story=head,
    )


def build_boards(job: Job, task: int, sinks: Sequence[Sink] = ()) -> StepOutput:
    """Make one task's share of the dataset's units."""
    from steps.bodies.build_boards import build_units

    machine, settings = Machine.here(), _typed(job["settings"])
    if job["origin"] is not None:
        return job["origin"]["outputs"]["join_boards"]  # The join hands on the origin's boards: there is nothing to build.
    engine = identify(machine.stockfish)
    units = range(task, settings.boards.num_units, settings.boards.num_tasks)
    return run_step(
        job,
        machine,
        step="build_boards",
        module="steps.bodies.build_boards",
        settings=settings_by_step.dataset_settings(settings) | {"units": list(units)},
        inputs=settings_by_step.source_inputs(settings, engine),
        work=lambda work: build_units(settings, units, engine, machine.stockfish, work, cache_folder=machine.value_cache),
        sinks=sinks,
        is_archived=False,  # All of it is in the joined dataset.
    )


def join_boards(job: Job, parts: Sequence[StepOutput]) -> StepOutput:
    """Join the parts into the dataset, with exact quotas and no board twice."""
    from grpo.dataset.table import BOARD_SCHEMA
    from steps.bodies.build_boards import REJECTED, join_units
    from steps.tracking.dataset_schema import dataset_columns
    from steps.tracking.plots import phases_plot

    machine, settings = Machine.here(), _typed(job["settings"])
    store = Store.of(machine)

    def publish(folder: Path, child: ChildRun) -> None:
        report = read_json(folder / REPORT)
        digest = sha256_file(folder / BOARDS)
        child.dataset(
            digest=digest,
            source=(folder / BOARDS).as_uri(),
            profile={"num_rows": report["rows"]} | {name: report[name] for name in ("phases", "splits", "sources", "labels")},
            schema=dataset_columns(BOARD_SCHEMA),
        )
        child.tag({DATASET: digest})
        _log_plots(child, {"phases": phases_plot(report)})
        child.file(folder / REPORT)
        child.file(folder / REJECTED)

    hashes = [_unit_hashes(store.open(part)) for part in parts] if job["origin"] is None else []
    units = {name: digest for part in hashes for name, digest in part.items()}
    return run_step(
        job,
        machine,
        step="join_boards",
        module="steps.bodies.build_boards",
        settings=settings_by_step.dataset_settings(settings),
        # The units' own hashes, not those of the tasks that made them: how many tasks there were changes nothing.
        inputs=settings_by_step.source_inputs(settings, identify(machine.stockfish)) | units,
        work=lambda work: join_units(settings, [store.open(part) for part in parts], work),
        publish=publish,
    )


def check_boards(job: Job, boards: StepOutput) -> StepOutput:
    """Gate the dataset; raises ChecksError with a readable report when an expectation does not hold."""
    from steps.bodies.check_boards import check_dataset

    machine, settings = Machine.here(), _typed(job["settings"])
    store = Store.of(machine)

    def publish(folder: Path, child: ChildRun) -> None:
        child.file(folder / REPORT)
        child.file(folder / SUMMARY_PAGE)

    return run_step(
        job,
        machine,
        step="check_boards",
        module="steps.bodies.check_boards",
        settings=settings_by_step.check_settings(settings),
        inputs={"boards": boards["output_hash"]},
        work=lambda work: check_dataset(settings, store.open(boards), work),
        publish=publish,
    )


def pretrain(job: Job, boards: StepOutput, sinks: Sequence[Sink] = ()) -> StepOutput:
    """Imitate until the validation loss stops falling; of a language model, clone the answers of the value tables."""
    from steps.bodies.pretrain import pretrain_policy
    from steps.runtime.device import device_facts, torch_device

    machine, settings = Machine.here(), _typed(job["settings"])
    store, is_language = Store.of(machine), settings.policy.kind == LANGUAGE

    def work(work: Work) -> None:
        if is_language:
            from steps.bodies.language_pretrain import pretrain_language

            pretrain_language(settings_by_step.seen_by_cloning(settings), store.open(boards), torch_device(machine), work)
        else:
            pretrain_policy(settings, store.open(boards), torch_device(machine), work)

    return run_step(
        job,
        machine,
        step="pretrain",
        module="steps.bodies.language_pretrain" if is_language else "steps.bodies.pretrain",
        settings=settings_by_step.pretrain_settings(settings),
        inputs={"boards": boards["output_hash"], "device": device_facts(machine), **settings_by_step.model_inputs(settings)},
        work=work,
        shown=_SHOWN_OF_CLONING if is_language else ("imitation/validation_loss", "imitation/top1", "imitation/entropy"),
        sinks=sinks,
        publish=lambda folder, child: child.file(folder / REPORT),
    )


def calibrate(job: Job, sinks: Sequence[Sink] = ()) -> StepOutput:
    """Rate the opponents that strength is measured with; they depend on no dataset, so that later runs use the same ladder."""
    from steps.bodies.calibrate import calibrate_ladder

    machine, settings = Machine.here(), _typed(job["settings"])
    engine = identify(machine.stockfish)
    return run_step(
        job,
        machine,
        step="calibrate",
        module="steps.bodies.calibrate",
        settings=settings_by_step.ladder_settings(settings),
        inputs={"engine": str(engine), **settings_by_step.opening_inputs(settings)},
        work=lambda work: calibrate_ladder(
            settings, engine=engine, engine_path=machine.stockfish, num_processes=machine.num_threads, work=work
        ),
        shown=("ladder/rating", "ladder/rating_low", "ladder/rating_high"),
        sinks=sinks,
        publish=lambda folder, child: child.file(folder / REPORT),
    )


def baseline(job: Job, boards: StepOutput, pretrained: StepOutput, calibrated: StepOutput, sinks: Sequence[Sink] = ()) -> StepOutput:
    """Measure the pretrained policy against the ladder and Stockfish before GRPO touches it."""
    from steps.bodies.baseline import play_baseline
    from steps.runtime.device import device_facts, torch_device

    machine, settings = Machine.here(), _typed(job["settings"])
    store = Store.of(machine)

    def publish(folder: Path, child: ChildRun) -> None:
        child.file(folder / REPORT)
        if (folder / DECISIONS).exists():  # A language model has none, nor has an origin's output of a time when none were kept.
            child.file(folder / DECISIONS)

    return run_step(
        job,
        machine,
        step="baseline",
        module="steps.bodies.baseline",
        settings=settings_by_step.baseline_settings(settings),
        inputs={
            "boards": boards["output_hash"],
            "pretrained": pretrained["output_hash"],
            "ladder": calibrated["output_hash"],
            "engine": str(identify(machine.stockfish)),
            "device": device_facts(machine),
            **settings_by_step.opening_inputs(settings),
        },
        work=lambda work: play_baseline(
            settings,
            boards=store.open(boards),
            pretrained=store.open(pretrained),
            calibrated=store.open(calibrated),
            engine_path=machine.stockfish,
            num_processes=machine.num_threads,
            device=torch_device(machine),
            work=work,
        ),
        shown=("baseline/score_random", "baseline/score_engine", "baseline/rating", "heldout/regret_best"),
        sinks=sinks,
        publish=publish,
    )


def finetune(
    job: Job,
    boards: StepOutput,
    pretrained: StepOutput,
    sinks: Sequence[Sink] = (),
    *,
    on_assessed: Callable[[Mapping[str, Any]], None] | None = None,
    node: Node = ONLY_NODE,
) -> StepOutput:
    """Fine-tune by GRPO, from the pretrained policy or from the origin's checkpoint; tell what was found before the first update.

    Of several machines each calls this: all train, node 0 makes the output and tells the tracker, and all return it.
    """
    from steps.nodes.team import joined_nodes

    machine = Machine.here()
    if _typed(job["settings"]).policy.kind == LANGUAGE:
        refuse_several(node.count * (node.num_processes or 1))
        node = replace(node, num_processes=1)
    with joined_nodes(node, machine) as team:
        return _finetune(job, boards, pretrained, sinks=sinks, on_assessed=on_assessed, machine=machine, team=team)


def _finetune(
    job: Job,
    boards: StepOutput,
    pretrained: StepOutput,
    *,
    sinks: Sequence[Sink],
    on_assessed: Callable[[Mapping[str, Any]], None] | None,
    machine: Machine,
    team: "Team",
) -> StepOutput:
    from steps.nodes.worker import WorkerTask
    from steps.pipeline.resume import origin_checkpoint
    from steps.runtime.device import device_facts
    from steps.tracking.plots import training_plots

    settings = _typed(job["settings"])
    store, is_language = Store.of(machine), settings.policy.kind == LANGUAGE
    checkpoint = None if job["origin"] is None else origin_checkpoint(job["origin"], Tracker(machine, must_answer=False), store)
    engine = identify(machine.stockfish)
    wanted = settings_by_step.finetune_settings(settings)
    inputs = {
        "boards": boards["output_hash"],
        "pretrained": pretrained["output_hash"],
        "checkpoint": "" if checkpoint is None else str(read_json(checkpoint / MANIFEST)["output_hash"]),
        "engine": str(engine),
        "device": device_facts(machine),
    }
    if (num_processes := team.met(inputs)) > 1:
        inputs["processes"] = str(num_processes)  # Sums over them round differently.

    def task() -> WorkerTask:
        return WorkerTask(
            settings=job["settings"],
            boards=str(store.open(boards)),
            pretrained=str(store.open(pretrained)),
            checkpoint="" if checkpoint is None else str(checkpoint),
            facts={"settings": wanted, **inputs},  # No more than the version holds: equal versions have equal checkpoints.
        )

    def train(work: Work) -> None:
        if not is_language:
            team.finetune(task(), work, tell)
            return
        from steps.bodies.language_finetune import finetune_language
        from steps.runtime.device import torch_device

        finetune_language(
            settings,
            boards=store.open(boards),
            pretrained=store.open(pretrained),
            checkpoint=checkpoint,
            facts={"settings": wanted, **inputs},
            device=torch_device(machine),
            work=work,
            on_assessed=tell,
        )

    if not team.leads:
        return team.help(task)
    told = False

    def tell(found: Mapping[str, Any]) -> None:
        nonlocal told
        told = True
        if on_assessed is not None:
            on_assessed(found)

    def publish(folder: Path, child: ChildRun) -> None:
        child.file(folder / REPORT)
        child.file(folder / LEARNABILITY)
        child.file(folder / FINDINGS)
        found = {FOUND: read_json(folder / FINDINGS)["tag"]}
        child.tag(found)
        child.tag_flow_run(found)
        _log_plots(child, training_plots(read_history(folder), settings))
        if not told:  # The output, or its beginning, was there already.
            tell(read_json(folder / LEARNABILITY))

    output = run_step(
        job,
        machine,
        step="finetune",
        module="steps.bodies.language_finetune" if is_language else "steps.bodies.finetune",
        settings=wanted,
        inputs=inputs,
        work=train,
        goes_on=True,
        shown=_SHOWN_OF_ANSWERS if is_language else ("heldout/regret_best", "heldout/regret_sampled", "heldout/entropy"),
        sinks=sinks,
        publish=publish,
    )
    team.finished(output)
    return output


def screen(
    job: Job,
    *,
    boards: StepOutput,
    pretrained: StepOutput,
    calibrated: StepOutput,
    finetuned: StepOutput,
    sinks: Sequence[Sink] = (),
) -> StepOutput:
    """Let candidates play against the initial policy, from which one is chosen."""
    return _play_ahead(job, "screen", sinks, boards=boards, pretrained=pretrained, calibrated=calibrated, finetuned=finetuned)


def confirm(
    job: Job,
    *,
    boards: StepOutput,
    pretrained: StepOutput,
    calibrated: StepOutput,
    finetuned: StepOutput,
    screened: StepOutput,
    part: int,
    sinks: Sequence[Sink] = (),
) -> StepOutput:
    """Play one task's share of the games that decide whether the chosen candidate is better."""
    return _play_ahead(
        job,
        "confirm",
        sinks,
        boards=boards,
        pretrained=pretrained,
        calibrated=calibrated,
        finetuned=finetuned,
        screened=screened,
        part=part,
    )


def _play_ahead(
    job: Job,
    step: str,
    sinks: Sequence[Sink],
    *,
    boards: StepOutput,
    pretrained: StepOutput,
    calibrated: StepOutput,
    finetuned: StepOutput,
    screened: StepOutput | None = None,
    part: int | None = None,
) -> StepOutput:
    from steps.bodies.game_cache import TaskPart
    from steps.bodies.screen import play_ahead
    from steps.runtime.device import torch_device

    machine, settings = Machine.here(), _typed(job["settings"])
    store = Store.of(machine)
    wanted = settings_by_step.selection_settings(settings)
    inputs = _selection_inputs(settings, machine, boards=boards, pretrained=pretrained, calibrated=calibrated, finetuned=finetuned)
    incumbent = _incumbent(machine, store, Tracker(machine, must_answer=False), settings=wanted, inputs=inputs, code=job["code"])
    share = None if part is None else TaskPart(part=part, num_parts=settings.selection.num_tasks)
    return run_step(
        job,
        machine,
        step=step,
        module="steps.bodies.screen",
        settings=wanted | ({} if share is None else asdict(share)),
        inputs={**inputs, "previous": incumbent.label, **({} if screened is None else {"screened": screened["output_hash"]})},
        work=lambda work: play_ahead(
            settings,
            boards=store.open(boards),
            pretrained=store.open(pretrained),
            finetuned=store.open(finetuned),
            previous=None if incumbent.model is None else incumbent.model.folder,
            screened=None if screened is None else store.open(screened),
            share=share,
            engine_path=machine.stockfish,
            num_processes=machine.num_threads,
            device=torch_device(machine),
            work=work,
        ),
        sinks=sinks,
        is_archived=False,  # All of it is among the games of `select`.
    )


def select(
    job: Job,
    *,
    boards: StepOutput,
    pretrained: StepOutput,
    calibrated: StepOutput,
    finetuned: StepOutput,
    ahead: Sequence[StepOutput] = (),
    sinks: Sequence[Sink] = (),
) -> StepOutput:
    """Let checkpoints compete, and register peak and champion; games that other tasks have played already are not played again."""
    from steps.bodies.select import select_champion
    from steps.runtime.device import torch_device
    from steps.tracking.plots import selection_plot

    machine, settings = Machine.here(), _typed(job["settings"])
    store, tracker = Store.of(machine), Tracker(machine, must_answer=False)
    wanted = settings_by_step.selection_settings(settings)
    inputs = _selection_inputs(settings, machine, boards=boards, pretrained=pretrained, calibrated=calibrated, finetuned=finetuned)
    incumbent = _incumbent(machine, store, tracker, settings=wanted, inputs=inputs, code=job["code"])
    if incumbent.problem:
        print(f"select: WARNING: the registry's champion cannot be played, so it stays, unbeaten: {incumbent.problem}", flush=True)

    def publish(folder: Path, child: ChildRun) -> None:
        decision = read_json(folder / REPORT)
        child.file(folder / REPORT)
        if (folder / DECISIONS).exists():  # A language model has none.
            child.file(folder / DECISIONS)
        child.file(folder / PGN)
        start = f"{decision['initial_weights']}, {decision['scored_by']}"
        # Bounds can be compared only when they are of the same start and of games that count in the same way.
        peak, champion = (
            Choice(policy_step=decision[f"{part}_step"], initial_weights=start, low=low)
            for part, low in ((PEAK, decision["peak_low"]), (CHAMPION, None))
        )
        _log_plots(child, {"selection": selection_plot(decision)})
        child.tag_flow_run({PEAK_STEP: decision["peak_step"], VERDICT: decision["verdict"]})
        child.choose(
            Chosen(
                flow_run=job["mlflow_run"],
                description=notes.version_note(decision),
                peak=peak,
                champion=champion,
                is_beaten=decision["replaces_previous"] and not incumbent.problem,
                seen=incumbent.version,
            )
        )

    return run_step(
        job,
        machine,
        step="select",
        module="steps.bodies.select",
        settings=wanted,
        inputs={**inputs, "previous": incumbent.label},
        work=lambda work: select_champion(
            settings,
            boards=store.open(boards),
            pretrained=store.open(pretrained),
            calibrated=store.open(calibrated),
            finetuned=store.open(finetuned),
            previous=None if incumbent.model is None else incumbent.model.folder,
            engine_path=machine.stockfish,
            num_processes=machine.num_threads,
            device=torch_device(machine),
            work=work,
            ahead=[store.open(output) for output in ahead],
        ),
        shown=("selection/score_best", "selection/score_best_low", "selection/score_best_high", "selection/score_sampled"),
        sinks=sinks,
        publish=publish,
    )


def _selection_inputs(
    settings: Settings, machine: Machine, *, boards: StepOutput, pretrained: StepOutput, calibrated: StepOutput, finetuned: StepOutput
) -> dict[str, str]:
    from steps.runtime.device import device_facts

    return {
        "boards": boards["output_hash"],
        "pretrained": pretrained["output_hash"],
        "ladder": calibrated["output_hash"],
        "finetuned": finetuned["output_hash"],
        "engine": str(identify(machine.stockfish)),
        "device": device_facts(machine),
        **settings_by_step.opening_inputs(settings),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Incumbent:
    """The registry's champion, as the step `select` meets it."""

    version: int | None = None
    """Its number in the registry; None when there is no champion."""
    model: FoundPolicy | None = None
    """The policy to be beaten, if it is to be played."""
    label: str = ""
    """Its part in the step's version."""
    problem: str = ""
    """Why it cannot be played."""


def _incumbent(
    machine: Machine,
    store: Store,
    tracker: Tracker,
    *,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
    code: Mapping[str, Any],
) -> _Incumbent:
    """Return the registry's champion. When this very step made it, it is no rival: asked again, the step's output is found again."""
    from steps.policies.open import open_policy
    from steps.runtime.device import torch_device
    from steps.tracking.archive import output_manifest
    from steps.tracking.registry_reader import registered_policy

    try:
        held = Registry(tracker).named(CHAMPION)
    except TrackingAwayError as error:
        return _Incumbent(label="cannot be played", problem=str(error))  # If there is one, it stays: `Registry.enter` sees to that.
    if held is None:
        return _Incumbent()
    try:
        found = registered_policy(machine, CHAMPION)
        label = str(output_manifest(tracker, store, found.output)["parts"]["inputs"].get("previous", ""))
        again = step_version(
            step="select", module="steps.bodies.select", settings=settings, inputs={**inputs, "previous": label}, code=code
        )
        if again.version == found.output["version"] and store.has(found.output):
            return _Incumbent(version=held.number, label=label)
        model = find_policy(CHAMPION, machine)
        open_policy(model.folder, torch_device(machine))  # Now, and not after games were played.
    except PlainError as error:
        return _Incumbent(version=held.number, label="cannot be played", problem=str(error))
    return _Incumbent(version=held.number, model=model, label=model.weights_hash)


def report(job: Job, outputs: Mapping[str, StepOutput]) -> StepOutput:
    """Write the run's story: comparison, phases, curves, and where everything is."""
    from steps.bodies.report import write_report
    from steps.export.language_card import language_facts
    from steps.export.model_card import CardFacts, model_card
    from steps.runs.facts import run_facts
    from steps.tracking.plots import phases_plot, selection_plot, training_plots

    machine = Machine.here()
    store = Store.of(machine)

    def publish(folder: Path, child: ChildRun) -> None:
        child.file(folder / REPORT_PAGE)
        behind = run_facts({step: store.open(output) for step, output in outputs.items()})
        decision = behind.reports["select"]
        plots = training_plots(read_history(store.open(outputs["finetune"])), _typed(job["settings"]))
        _log_plots(child, plots | {"selection": selection_plot(decision), "phases": phases_plot(behind.reports["join_boards"])})
        weights = decision["candidate_weights" if decision["promoted"] else "initial_weights"]
        facts = CardFacts(
            run=job["metaflow_run"],
            policy_step=decision["champion_step"],
            network=job["settings"]["policy"],
            hashes={"weights, as numbers": weights},
            behind=behind,
            language=language_facts(store.open(outputs["select"]) / CHAMPION),
        )
        with tempfile.TemporaryDirectory() as made:
            (Path(made) / MODEL_CARD).write_text(model_card(facts), encoding="utf-8")
            child.file(Path(made) / MODEL_CARD)

    return run_step(
        job,
        machine,
        step="report",
        module="steps.bodies.report",
        settings={},
        inputs={step: output["output_hash"] for step, output in outputs.items()},
        work=lambda work: write_report({step: store.open(output) for step, output in outputs.items()}, work),
        publish=publish,
    )


def end(job: Job, selected: StepOutput, reported: StepOutput) -> str:
    """Close the run and return the words that end it: verdict, and where champion, report and UI are."""
    machine = Machine.here()
    store, tracker = Store.of(machine), Tracker(machine, must_answer=False)
    decision = read_json(store.open(selected) / REPORT)
    folder = store.open(reported)
    told = read_json(folder / REPORT)
    places = {
        "Champion of this run": f"{_place(machine, store, selected)}/{CHAMPION}",
        "Report": f"{_place(machine, store, reported)}/{REPORT_PAGE}",
        "Card": f"python flows/chess_grpo.py card view {job['metaflow_run']}/report",
    }
    head = job.get("story", "")
    note = notes.ended(head, facts=told["steps"], findings=told.get("findings"), places=places) if head else ""
    num_untold = tracker.end_flow_run(job["mlflow_run"], {VERDICT: decision["verdict"]}, note)
    return "\n".join(
        [
            f"GRPO against the pretrained policy: {decision['verdict']} (candidate: step {decision['candidate_step']:,})",
            f"  best moves, as played   {decision['confirmation_best_moves']['text']}",
            f"  best moves, adjudicated {decision['confirmation_best_moves']['adjudicated']['text']}",
            f"  sampled at T = 1        {decision['confirmation_sampled_moves']['text']}",
            f"Champion of this run: {_place(machine, store, selected)}/{CHAMPION}",
            f"Report:   {_place(machine, store, reported)}/{REPORT_PAGE}",
            f"Card:     python flows/chess_grpo.py card view {job['metaflow_run']}/report",
            f"UI:       make ui   (MLflow at {tracker.uri})",
            *(
                [f"UNTOLD:   {num_untold:,} records wait for that store, which is away: `{_track(machine)}` tells them"]
                if num_untold
                else []
            ),
        ]
    )


def _log_plots(child: ChildRun, plots: Mapping[str, bytes]) -> None:
    """Keep pictures, by name, below `plots/` in a child run."""
    with tempfile.TemporaryDirectory() as made:
        for name, content in plots.items():
            (Path(made) / f"{name}.svg").write_bytes(content)
        child.file(Path(made), "plots")


def _track(machine: Machine) -> str:
    # What a container left lies in the shared store, of which the launcher's shell need not know.
    return f"{SHARED}={machine.shared} chess-grpo track" if machine.is_container else "chess-grpo track"


def _place(machine: Machine, store: Store, output: StepOutput) -> str:
    """Return where people find an output: not on a disk that goes with the task."""
    if machine.is_container:
        return f"{machine.shared}/outputs/{output['step']}/{output['version']}/{output['output_hash']}"
    return str(store.folder(output["step"], output["version"]))


def _typed(settings: Mapping[str, Any]) -> Settings:
    return Settings.model_validate(dict(settings))


def _unit_hashes(folder: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(folder.glob("unit-*"))}
