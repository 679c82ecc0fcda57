"""The command `chess-grpo doctor`: checks machine and settings before a run, without changing anything."""

import argparse
import shlex
from typing import TYPE_CHECKING

from grpo.settings.tree import DEFAULT_PRESET, ConfigError, Settings
from steps.cli.parser import add_settings, given_settings
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import wrapped

if TYPE_CHECKING:
    from steps.preflight.checks import PreflightCheck


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `doctor`."""
    doctor = commands.add_parser(
        "doctor",
        description="Check what a run needs: Python and packages, settings, Stockfish, disk, tracking store, device, files and opening"
        " books in the settings, Weights & Biases. Each failure comes with its remedy. Nothing is changed, and no key is printed.",
    )
    add_settings(doctor)
    doctor.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace) -> int:
    from steps.preflight.doctor import examine

    settings: Settings | ConfigError
    try:
        settings = given_settings(given)
    except ConfigError as error:
        settings = error
    findings = examine(settings, Machine.here())
    num_wrong = sum(not finding.is_fine for finding in findings)
    print(_table(findings))
    if num_wrong:
        print(f"{num_wrong} of {len(findings)} checks failed; each line says how to fix it.")
    else:
        print(f"All checks passed: `{_run(given)}` can start.")
    return 1 if num_wrong else 0


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
