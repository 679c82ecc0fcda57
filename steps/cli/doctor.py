"""Command `chess-grpo doctor`."""

import os

import click

from grpo.settings.tree import ConfigError, Settings
from steps.cli.options import given_settings, settings_options
from steps.run.machine import Machine
from steps.run.processes import PLACES


@click.command()
@click.option("--with", "place", type=click.Choice(PLACES), help="Also check what the flow's --with needs.")
@settings_options
def command(config: str | None, values: tuple[str, ...], place: str | None) -> int:
    """Check what a run needs, without changing anything; `--with` writes an object to the bucket and deletes it.

    Checks packages, Metaflow, settings, Stockfish, disk, tracking store, device, files.
    """
    from steps.job.preflight import examine, table

    settings: Settings | ConfigError
    try:
        settings = given_settings(config, values)
    except ConfigError as error:
        settings = error
    checks = examine(settings, Machine.here())
    if place:
        from steps.batch.account import account_checks

        checks += account_checks(os.environ, place)
    click.echo(table(checks))
    num_failed, num_warnings = sum(not check.is_fine for check in checks), sum(check.is_warning for check in checks)
    warnings = f", {num_warnings} warning{'s' * (num_warnings > 1)}" if num_warnings else ""
    print(f"{num_failed} of {len(checks)} checks failed; each line has a remedy." if num_failed else f"All checks passed{warnings}.")
    return int(num_failed > 0)
