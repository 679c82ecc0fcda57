"""The command `chess-grpo doctor`: checks machine and settings before a run, without changing anything."""

import argparse
import shlex

from grpo.settings.tree import DEFAULT_PRESET, ConfigError, Settings
from steps.cli.parser import add_settings, given_settings
from steps.run.machine import Machine
from steps.run.terminal_lines import say


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
    from steps.preflight import examine, table

    settings: Settings | ConfigError
    try:
        settings = given_settings(given)
    except ConfigError as error:
        settings = error
    checks = examine(settings, Machine.here())
    num_wrong = sum(not check.is_fine for check in checks)
    say(table(checks))
    if num_wrong:
        print(f"{num_wrong} of {len(checks)} checks failed; each line says how to fix it.")
    else:
        print(f"All checks passed: `{_run(given)}` can start.")
    return 1 if num_wrong else 0


def _run(given: argparse.Namespace) -> str:
    """Return the command that runs with these settings."""
    words = [] if given.config == DEFAULT_PRESET else [f"CONFIG={given.config}"]
    words += [f"SET={shlex.quote(' '.join(given.set))}"] if given.set else []
    return " ".join(["make run", *words])
