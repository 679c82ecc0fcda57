"""Command `chess-grpo track`."""

import click

from steps.run.machine import Machine
from steps.run.records import Runs
from steps.run.store import Store


@click.command()
@click.option("--again", is_flag=True, help="Check all runs, after a database was restored or deleted.")
def command(again: bool) -> int:
    """Log to MLflow what the store's runs could not log during an outage.

    Each run goes to its own tracking store, nothing twice. Exit code 1: something is still missing. Weights & Biases: use `wandb sync`.
    """
    from steps.track.publish import publish_all

    machine = Machine.here()
    store = Store.of(machine)
    runs = Runs(store)
    runs.close_gone()
    waiting = list(runs.all() if again else runs.unpublished())
    reasons = publish_all(machine, runs=waiting, again=again)
    missing: dict[str, list[str]] = {}
    for run in reversed(waiting):  # Oldest first.
        reason, tracking = reasons.get(run.name, ""), run.facts["tracking"]
        if run.status == "running":
            click.echo(f"run {run.name} is running and logs itself{f' ({reason})' if reason else ''}")
        elif reason:
            missing.setdefault(tracking, []).append(f"  run {run.name}: {reason}")
        else:
            click.echo(f"run {run.name}: everything is in {tracking}")
    num_runs = sum(run.status != "running" for run in runs.all())
    for tracking, lines in missing.items():
        click.echo("\n".join([f"{tracking}: {len(lines)} of {num_runs} ended runs are incomplete:", *lines]))
    if not missing:
        click.echo(f"Everything is logged: {num_runs} ended runs of {store}.")
    return int(bool(missing))
