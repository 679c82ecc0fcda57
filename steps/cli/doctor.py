"""The command `chess-grpo doctor`: checks machine and settings before a run, without changing anything."""

import shlex

import click

from grpo.settings.tree import ConfigError, Settings
from steps.cli.options import given_settings, settings_options
from steps.run.machine import Machine


@click.command()
@settings_options
def command(config: str | None, values: tuple[str, ...]) -> int:
    """Check what a run needs, without changing anything.

    Python and packages, settings, Stockfish, disk, tracking store, device, files and opening books in the settings, Weights & Biases. Each
    failure comes with its remedy. No key is printed.
    """
    from steps.preflight import examine, table

    settings: Settings | ConfigError
    try:
        settings = given_settings(config, values)
    except ConfigError as error:
        settings = error
    checks = examine(settings, Machine.here())
    num_wrong = sum(not check.is_fine for check in checks)
    click.echo(table(checks))
    if num_wrong:
        print(f"{num_wrong} of {len(checks)} checks failed; each line says how to fix it.")
    else:
        print(f"All checks passed: `{_run(config, values)}` can start.")
    return 1 if num_wrong else 0


def _run(config: str | None, values: tuple[str, ...]) -> str:
    """Return the command that runs with these settings."""
    words = [] if config is None else [f"CONFIG={config}"]
    words += [f"SET={shlex.quote(' '.join(values))}"] if values else []
    return " ".join(["make run", *words])
