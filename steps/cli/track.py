"""The command `chess-grpo track`: logs to MLflow what runs could not log during an outage."""

import click

from steps.run.machine import Machine


@click.command()
@click.option("--again", is_flag=True, help="Ask the tracking stores for everything: after a database was restored or deleted.")
def command(again: bool) -> int:
    """Log to MLflow what runs of this store could not log during an outage.

    Each run is logged to the tracking store that it belongs to; a second time logs nothing twice. What Weights & Biases could not take
    lies in folders that `wandb sync` uploads. The exit code is 1 when something is left.
    """
    from steps.run.records import Runs
    from steps.run.store import Store
    from steps.track.publish import publish_all  # MLflow takes seconds to import.

    machine = Machine.here()
    store = Store.of(machine)
    runs = Runs(store)
    runs.close_gone()
    waiting = {run.name: run for run in (runs.all() if again else runs.unpublished())}
    reasons = publish_all(machine, runs=list(waiting.values()), again=again)
    left: dict[str, list[str]] = {}
    for name, run in reversed(waiting.items()):  # The earliest first, as they happened.
        reason = reasons.get(name, "")
        if run.status == "running":
            click.echo(f"run {name} is running, and logs itself{f' ({reason})' if reason else ''}")
        elif reason:
            left.setdefault(run.facts["tracking"], []).append(f"  run {name}: {reason}")
        else:
            click.echo(f"run {name}: all of it is in {run.facts['tracking']}")
    num_runs = sum(run.status != "running" for run in runs.all())
    for tracking, lines in left.items():
        click.echo("\n".join([f"{tracking} lacks {len(lines)} of {num_runs} runs that are over:", *lines]))
    if not left:
        click.echo(f"Everything is logged: {num_runs} runs of {store} that are over.")
    return 1 if left else 0
