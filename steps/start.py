"""The first step."""

import json
import os
import platform
import time
from collections.abc import Mapping
from typing import Any, Final

from grpo.settings.tree import Settings
from steps.job.preflight import PreflightError, preflight, table
from steps.job.resume import Job, ResumeError, changes, find_origin, resumed_command, resumed_settings
from steps.run.launch import Launch, launch_of
from steps.run.machine import Machine
from steps.run.processes import LAUNCHER
from steps.run.records import RunFacts, Runs
from steps.run.store import Store
from steps.run.time_left import usual_seconds
from steps.run.versions import CodeFacts, describe_code
from steps.track.sweep import SWEEP, SWEEP_VARIABLE

_NUM_TIMED: Final = 10  # Latest runs that the time estimate uses.


def start(config: Mapping[str, Any], *, run: str, is_fresh: bool, resume_from: str) -> Job:
    """Check all that the run needs, begin the run's record, and return the facts for the other steps.

    - `config`: `settings` (all settings) and `keys` (settings of the command), both nested
    - `run`: Metaflow's id
    - `is_fresh`: compute every output again
    - `resume_from`: checkpoint, such as RUN/STEP or `peak`; empty for a new training

    Raises PreflightError if a check fails, NotFoundError, ResumeError or ConfigError if the run cannot resume.
    """
    if is_fresh and resume_from:
        raise ResumeError("--fresh and --resume-from: a resumed run reuses its origin's boards and policy; give only one of the two")
    machine, code = Machine.here(), describe_code()
    settings, origin = Settings.model_validate(config["settings"]), None
    if resume_from:
        origin = find_origin(resume_from, launch_of(config["settings"]).preset, machine)
        settings = resumed_settings(origin, config["keys"])
    # A resumed run reuses its origin's boards, so it needs no game files.
    without_files = settings.model_copy(update={"boards": settings.boards.model_copy(update={"files": (), "exclude": ()})})
    checks = preflight(settings if origin is None else without_files, machine)
    print(f"Preflight\n{table(checks)}", flush=True)
    if failed := [check for check in checks if not check.is_fine]:
        raise PreflightError(f"cannot start:\n{table(failed)}")
    runs, details = Runs(Store.of(machine)), {check.what: check.detail for check in checks}
    for closed in runs.close_gone():
        print(f"run {closed.name} is over: its processes are gone", flush=True)
    plain = settings.model_dump(mode="json")
    launch = launch_of(plain)
    usual = usual_seconds(runs.newest(_NUM_TIMED), launch.preset)
    job = Job(run=run, settings=plain, code={**code, "fresh": run if is_fresh else ""}, origin=origin, usual=usual)
    runs.begin_run(_facts(job, launch, settings, code, details=details, tracking=machine.shown_uri))
    from steps.track.publish import SECONDS, publish_all

    publish_all(machine, seconds=SECONDS)
    return job


def _facts(job: Job, launch: Launch, settings: Settings, code: CodeFacts, *, details: Mapping[str, str], tracking: str) -> RunFacts:
    plain, origin = job["settings"], job["origin"]
    tags = {"git.commit": str(code["commit"]), "git.dirty": str(code["is_dirty"]), "chess_grpo.engine": details["stockfish"]}
    if origin is None:
        command, differences = launch.command(["--fresh"] if job["code"]["fresh"] else []), launch.differences
        base = f"the preset `{launch.preset}`"
    else:
        command, differences = resumed_command(origin, settings), changes(origin, settings)
        base = f"run {origin['run']}, whose step {origin['step']:,} this run resumes"
        tags |= {"chess_grpo.origin": origin["run"], "chess_grpo.origin_step": str(origin["step"])}
        tags |= {f"chess_grpo.changed.{name}": change for name, change in differences.items()}
        known = {name: origin["known"][name] for name in ("data", "verdict", "findings") if name in origin["known"]}
        print(f"Resuming from {origin['name']}: step {origin['step']:,} of run {origin['run']}", flush=True)
        print("\n".join(f"  {name}: {text}" for name, text in (known | differences).items()), flush=True)
    if sweep := os.environ.get(SWEEP_VARIABLE):
        tags[SWEEP] = sweep
    return RunFacts(
        run=job["run"],
        preset=launch.preset,
        settings=plain,
        code=code,
        tracking=tracking,
        command=command,
        label=launch.label,
        tags=tags,
        head=_head(command, differences, base, code, details),
        texts={"settings.json": json.dumps(plain, indent=1) + "\n", "settings.toml": launch.text},
        origin=None if origin is None else {"name": origin["name"], "run": origin["run"], "step": origin["step"]},
        started=time.time(),
        launcher=os.environ.get(LAUNCHER, ""),
    )


def _head(command: str, differences: Mapping[str, Any], base: str, code: CodeFacts, details: Mapping[str, str]) -> str:
    rows = "\n".join(["| setting | here |", "| --- | --- |", *(f"| `{name}` | {value} |" for name, value in differences.items())])
    dirty = " with uncommitted changes" if code["is_dirty"] else ""
    return f"""## Configuration

```
{command}
```

{f"Settings that differ from {base}:" if differences else f"All settings are those of {base}."}

{rows if differences else ""}

On {platform.system()} {platform.machine()}: {details["device"]}; {details["stockfish"]}; commit `{str(code["commit"])[:12]}`{dirty}.
The artifact `settings.json` has all settings, `settings.toml` the differences from the preset."""
