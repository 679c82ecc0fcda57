"""The first step as the flow calls it: check all that can be checked before any work, and open the run."""

import json
from collections.abc import Mapping
from typing import Any

from steps.pipeline.job import Job, typed_settings
from steps.pipeline.resume import ResumeError, find_origin, take_over
from steps.pipeline.resume_changes import recorded
from steps.pipeline.run_step import code_tags
from steps.preflight.checks import PreflightError, preflight, preflight_table
from steps.runs.index import step_seconds
from steps.runtime.device import device_facts
from steps.runtime.machine import Machine
from steps.tracking import notes
from steps.tracking.launch import launch_of
from steps.tracking.outages import TrackingAwayError
from steps.tracking.tags import COMMAND, ENGINE, PRESET, RUN_NAME
from steps.tracking.tracker import Tracker


def start(
    settings: Mapping[str, Any],
    code: Mapping[str, Any],
    *,
    metaflow_run: str,
    is_fresh: bool,
    resume_from: str | None,
    allow: str = "",
) -> Job:
    """Check all that can be checked before any work, open the run, and return what the other steps need.

    Args:
        settings: the run's.
        code: from `describe_code`.
        metaflow_run: its id.
        is_fresh: recompute every output.
        resume_from: what it resumes from, if anything: `steps.pipeline.resume.find_origin` takes it.
        allow: which of the changes that a resumed run is refused for are allowed, separated by commas.

    Raises PreflightError with the table when something is missing, NotFoundError or ResumeError when there is nothing to resume from.
    """
    allowed = [name.strip() for name in allow.split(",") if name.strip()]
    if is_fresh and resume_from:
        raise ResumeError("--fresh and --resume-from: a resumed run takes its origin's boards and policy; give only one of the two")
    if allowed and not resume_from:
        raise ResumeError("--allow is for resumed runs: give --resume-from too, or leave it out")
    machine, typed, launch = Machine.here(), typed_settings(settings), launch_of(settings)
    findings, engine = preflight(typed, machine)
    print(f"Preflight\n{preflight_table(findings)}", flush=True)
    failed = [finding for finding in findings if not finding.is_fine]
    if failed or engine is None:
        raise PreflightError(f"cannot start:\n{preflight_table(failed)}")
    tracker = Tracker(machine)
    tags = code_tags(code) | {ENGINE: engine, PRESET: launch.preset, **notes.source_tags(code, machine)}
    tracker.deliver_left()
    origin = find_origin(resume_from, machine) if resume_from else None
    if origin is not None:
        changes = take_over(origin, typed, engine, allowed=allowed, code=code, device=device_facts(machine), machine=machine)
        tags |= {"chess_grpo.origin": origin["metaflow_run"], "chess_grpo.origin_step": origin["policy_step"], **recorded(changes, allowed)}
        changed = "".join(f"\n  {change}" for change in changes)
        print(f"Resuming from {origin['name']}: run {origin['metaflow_run']}, step {origin['policy_step']:,}{changed}", flush=True)
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
        changed=launch.differences.keys(),
        tags=tags | {RUN_NAME: launch.label},
        note=notes.begun(head, metaflow_run=metaflow_run),
        files={"settings.json": json.dumps(settings, indent=1) + "\n", "settings.toml": launch.text},
    )
    return Job(
        step_seconds=_step_seconds(machine, launch.preset),
        settings=dict(settings),
        code=dict(code),
        metaflow_run=metaflow_run,
        mlflow_run=run_id,
        is_fresh=is_fresh,
        origin=origin,
        checks={finding.what: finding.detail for finding in findings},
        story=head,
    )


def _step_seconds(machine: Machine, preset: str) -> dict[str, float]:
    try:
        return step_seconds(machine, preset)
    except TrackingAwayError:  # The preflight has said so; the run goes on without an estimate.
        return {}
