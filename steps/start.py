"""The first step: look at all that can be looked at before any work, and begin the record of the run."""

import json
import os
import platform
import time
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from grpo.settings.tree import Settings
from steps.preflight import PreflightError, preflight, table
from steps.resume import Job, Origin, ResumeError, changes, find_origin, resumed_command, resumed_settings
from steps.run.launch import Launch, launch_of
from steps.run.machine import Machine
from steps.run.processes import LAUNCHER
from steps.run.records import RunFacts, Runs
from steps.run.store import Store
from steps.track.publish import publish_all
from steps.track.sweep import SWEEP, SWEEP_VARIABLE

_RECENT: Final = 20
"""Runs that are looked through for the time of each step."""


def start(given: Mapping[str, Any], code: Mapping[str, Any], *, run: str, is_fresh: bool, resume_from: str) -> Job:
    """Look at all that the run needs, begin its record, and return what the other steps need.

    Args:
        given: what the text of the settings says: the whole `settings`, and the `keys` that it lays over a preset.
        code: from `describe_code`.
        run: Metaflow's run id.
        is_fresh: compute every output again.
        resume_from: what it resumes from, for `find_origin`; empty for a new training.

    Raises PreflightError with the table when something is missing, NotFoundError or ResumeError when there is nothing to resume from.
    """
    if is_fresh and resume_from:
        raise ResumeError("--fresh and --resume-from: a resumed run takes its origin's boards and policy; give only one of the two")
    machine = Machine.here()
    settings, origin = Settings.model_validate(given["settings"]), None
    if resume_from:
        origin = find_origin(resume_from, launch_of(given["settings"]).preset, machine)
        settings = resumed_settings(origin, given["keys"])
    checks = preflight(settings, machine)
    print(f"Preflight\n{table(checks)}", flush=True)
    if failed := [check for check in checks if not check.is_fine]:
        raise PreflightError(f"cannot start:\n{table(failed)}")
    runs, found = Runs(Store.of(machine)), {check.what: check.detail for check in checks}
    for gone in runs.close_gone():
        print(f"run {gone.name} is over: its processes are gone", flush=True)
    changed = {} if origin is None else changes(origin, settings)
    facts = _facts(settings, code, found, run=run, is_fresh=is_fresh, origin=origin, changed=changed, tracking=machine.shown_uri)
    seconds = _step_seconds(runs, facts["preset"])
    runs.begin_run(facts)
    publish_all(machine)
    if origin is not None:
        print(_resuming(origin, changed), flush=True)
    code = {**code, "fresh": run if is_fresh else ""}
    return Job(run=run, settings=facts["settings"], code=code, origin=origin, seconds=seconds, checks=found)


def _facts(
    settings: Settings,
    code: Mapping[str, Any],
    found: Mapping[str, str],
    *,
    run: str,
    is_fresh: bool,
    origin: Origin | None,
    changed: Mapping[str, str],
    tracking: str,
) -> RunFacts:
    plain = settings.model_dump(mode="json")
    launch = launch_of(plain)
    command = launch.command(["--fresh"] if is_fresh else []) if origin is None else resumed_command(origin, settings)
    tags = {"git.commit": str(code["commit"]), "git.dirty": str(code["is_dirty"]), "chess_grpo.engine": found["stockfish"]}
    if origin is not None:
        tags |= {"chess_grpo.origin": origin["run"], "chess_grpo.origin_step": str(origin["step"])}
        tags |= {f"chess_grpo.changed.{name}": change for name, change in changed.items()}
    if sweep := os.environ.get(SWEEP_VARIABLE):
        tags[SWEEP] = sweep
    return RunFacts(
        run=run,
        preset=launch.preset,
        settings=plain,
        code=dict(code),
        tracking=tracking,
        command=command,
        label=launch.label,
        tags=tags,
        head=_head(launch, command, code, found, origin=origin, changed=changed),
        texts={"settings.json": json.dumps(plain, indent=1) + "\n", "settings.toml": launch.text},
        origin=None if origin is None else {"name": origin["name"], "run": origin["run"], "step": origin["step"]},
        started=time.time(),
        launcher=os.environ.get(LAUNCHER, ""),
    )


def _head(
    launch: Launch, command: str, code: Mapping[str, Any], found: Mapping[str, str], *, origin: Origin | None, changed: Mapping[str, str]
) -> str:
    """Return the part of the run's description that never changes, in Markdown: command, settings, machine."""
    rows = changed if origin is not None else launch.differences
    differ = "\n".join(["| setting | here |", "| --- | --- |", *(f"| `{name}` | {value} |" for name, value in rows.items())])
    base = f"the preset `{launch.preset}`" if origin is None else f"run {origin['run']}, from whose step {origin['step']:,} it resumes"
    dirty = " with uncommitted changes" if code["is_dirty"] else ""
    return f"""## Configuration

```
{command}
```

{f"Settings that differ from {base}:" if rows else f"All settings are those of {base}."}

{differ if rows else ""}

On {platform.system()} {platform.machine()}: {found["device"]}; {found["stockfish"]}; commit `{str(code["commit"])[:12]}`{dirty}.
The artifacts have the settings: all in `settings.json`, the differences from the preset in `settings.toml`."""


def _resuming(origin: Origin, changed: Mapping[str, str]) -> str:
    lines = [f"Resuming from {origin['name']}: run {origin['run']}, step {origin['step']:,}"]
    lines += [f"  {name}: {change}" for name, change in changed.items()]
    return "\n".join(lines)


def _step_seconds(runs: Runs, preset: str) -> dict[str, float]:
    """Return how long each step took in the latest run of a preset that computed it; a step's parallel tasks count as one."""
    found: dict[str, float] = {}
    for run in islice(runs.all(), _RECENT):
        spans: dict[str, list[tuple[float, float]]] = {}
        for attempt in run.latest().values() if run.facts["preset"] == preset else ():
            if attempt.output is not None and not attempt.output["reused"] and attempt.ended is not None:
                spans.setdefault(attempt.step, []).append((attempt.started, attempt.ended))
        found = {name: max(end for _, end in tasks) - min(begin for begin, _ in tasks) for name, tasks in spans.items()} | found
    return found
