"""The command `chess-grpo doctor`: checks machine and settings before a run, without changing anything."""

import argparse
import json
import os
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

from grpo.settings.tree import DEFAULT_PRESET, ConfigError, Settings
from steps.cli.parser import add_settings, given_settings
from steps.cli.tables import text_table
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say, wrapped

if TYPE_CHECKING:
    from steps.preflight.checks import PreflightCheck


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `doctor`."""
    doctor = commands.add_parser(
        "doctor",
        description="Check what a run needs: Python and packages, settings, Stockfish, disk, tracking store, device, files and opening"
        " books in the settings, AWS Batch if Metaflow is configured for it, Weights & Biases. Each failure comes with its remedy."
        " Only --repair and --delete change anything, and no key is printed. With --batch: also ask AWS, by calls that change nothing. With"
        " --stale: list what this home no longer needs instead.",
    )
    add_settings(doctor)
    doctor.add_argument(
        "--batch",
        action="store_true",
        help="also ask AWS whether `run --with batch` would work: queues, sizes of machines, datastore, rights of the jobs' role, secrets,"
        " images; a call that you may not make is named, and fails nothing",
    )
    doctor.add_argument("--json", action="store_true", help="print the checks as JSON")
    doctor.add_argument(
        "--stale",
        type=float,
        metavar="DAYS",
        help="list what nobody has used for so many days: outputs set aside, progress of steps that were never finished, cached engine"
        " answers, copies of registered policies, records that MLflow rejected",
    )
    doctor.add_argument(
        "--repair",
        action="store_true",
        help="after this home was copied or moved: let the tracking store find the artifacts here; a copy of the store is kept",
    )
    doctor.add_argument("--delete", action="store_true", help="delete what --stale lists")
    doctor.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace) -> int:
    if given.stale is not None:
        return _stale(given.stale, deletes=given.delete)
    if given.delete:
        raise ConfigError("--delete deletes what --stale lists: give both, such as `chess-grpo doctor --stale 30 --delete`")
    if given.repair:
        return _repair(Machine.here())
    from steps.preflight.doctor import examine

    settings: Settings | ConfigError
    try:
        settings = given_settings(given)
    except ConfigError as error:
        settings = error
    findings = examine(settings, Machine.here())
    if given.batch:
        from steps.preflight.batch import ask_batch

        findings += ask_batch(Settings() if isinstance(settings, ConfigError) else settings, os.environ)
    num_wrong = sum(not finding.is_fine for finding in findings)
    if given.json:
        print(json.dumps({"is_fine": not num_wrong, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        print(_table(findings))
        ending = (
            f"{num_wrong} of {len(findings)} checks failed; each line says how to fix it."
            if num_wrong
            else f"All checks passed: `{_run(given)}` can start."
        )
        say(ending)
    return 1 if num_wrong else 0


def _repair(machine: Machine) -> int:
    from steps.preflight.moved_home import homes_elsewhere, repair

    if not (found := homes_elsewhere(machine)):
        say("Nothing to repair: the tracking store looks for no artifacts in another folder.")
        return 0
    backup = repair(machine)
    say(f"Artifacts of {sum(found.values()):,} runs are found in {machine.home} now. The store as it was before: {backup}")
    return 0


def _stale(num_days: float, *, deletes: bool) -> int:
    from steps.preflight.stale import delete, stale_files

    found = stale_files(Machine.here(), num_days=num_days)
    gone = [each for each in found if deletes and delete(each)]
    if found:
        rows = [(f"{each.num_bytes / 2**20:,.1f} MiB", f"{each.num_days:.0f} days", each.what, str(each.path)) for each in found]
        print(text_table(rows, folds=False))
    mebibytes = sum(each.num_bytes for each in found) / 2**20
    ending = f"{len(gone)} deleted" if deletes else "--delete deletes them"
    say(f"{len(found)} not used for {num_days:g} days, {mebibytes:,.1f} MiB in all{f'; {ending}' if found else ''}")
    return 0


def _run(given: argparse.Namespace) -> str:
    """Return the command that runs with these settings."""
    words = [] if given.config == DEFAULT_PRESET else [f"CONFIG={given.config}"]
    words += [f"SET={shlex.quote(' '.join(given.set))}"] if given.set else []
    return " ".join(["make run", *words])


def _table(findings: list["PreflightCheck"]) -> str:
    size = max(len(finding.what) for finding in findings)
    lines = []
    for finding in findings:
        first, *more = finding.detail.splitlines()
        head = f"  {'ok  ' if finding.is_fine else 'FAIL'}  {finding.what:<{size}}  "
        lines += [wrapped(first, head), *(wrapped(line, " " * len(head)) for line in more)]
    return "\n".join(lines)
