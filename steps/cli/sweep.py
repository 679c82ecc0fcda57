"""Command `chess-grpo sweep`."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from grpo.base.files import explain_write_errors, sha256_file, sha256_json
from grpo.settings.tree import Settings
from grpo.statistics.intervals import Estimate, Unit, between_runs, claimed_mean, within_runs
from steps import STEPS
from steps.cli.tables import text_table
from steps.run.code import ROOT, code_hash
from steps.run.commands import FLOW_FILE
from steps.run.machine import Machine
from steps.run.processes import PARENT_VARIABLE
from steps.run.step import Outside, step_of
from steps.run.store import Store
from steps.run.terminal import duration
from steps.run.versions import LOCK
from steps.track.sweep import SWEEP_VARIABLE, PlannedRun, SweepRow, plan_sweep, read_sweep, sweep_name

_STEP_BEGINS: Final = re.compile(r"[a-z_]+: step [0-9]+ of [0-9]+.*")  # Printed by `steps.job.task`.
_NOTES: Final = """
Elo [95 % interval]. Own start: the policy before GRPO, in the confirmation games. Other opponents: the ladder.
Between runs: the mean's interval covers all that a seed changes (Student's t); one seed has none.
Within runs: it covers only the luck of the games. If it is wider, the few runs agree by chance.
*: the wider interval. A claim about a setting needs it."""


@click.command()
@click.option("--seeds", "seed", type=int, required=True, metavar="N...", help="Seeds of the runs: --seeds 31 32 33.")
@click.argument("words", metavar="SETTINGS", nargs=-1)  # Also takes the later seeds, because click gives an option one value.
@click.option("--set", "values", multiple=True, metavar="KEY=A,B", help="Values of a setting; several --set combine.")
@click.option("--show", "only_shows", is_flag=True, help="Print the table of the runs so far; run and write nothing.")
def command(words: tuple[str, ...], seed: int, values: tuple[str, ...], only_shows: bool) -> int:
    """Run the pipeline with each seed and combination of settings; print the results and their means over seeds.

    SETTINGS is a preset or a TOML file. The repeated command skips finished runs (equal settings, files, code, packages and engine) and
    continues killed runs.
    """
    names = [word for word in words if not word.isdecimal()]
    if len(names) != 1:
        raise click.UsageError(f"give one preset or file, not {' '.join(names) or 'none'}: chess-grpo sweep smoke --seeds 31 32")
    settings, seeds = names[0], [seed, *(int(word) for word in words if word.isdecimal())]
    machine = Machine.here()
    plan = plan_sweep(settings, seeds, values, inputs=inputs_of(machine))
    store = Store.of(machine)
    if not only_shows:
        _run_all(plan, machine.home / "sweeps" / sweep_name(plan), store)
    rows = read_sweep(plan, store)
    for combination, table in sweep_tables(rows):
        print(f"\n{combination or settings}\n{text_table(table, indent='  ')}")
    print(_NOTES)
    failed = [] if only_shows else [row.planned.name for row in rows if not row.is_finished]
    if failed:
        unfinished = f"{len(failed)} of {len(rows)} runs did not finish: {'; '.join(failed)}"
        click.echo(f"chess-grpo: {unfinished}. Each run's log has the cause. Fix it and repeat the command", err=True)
    return int(bool(failed))


def sweep_tables(rows: Sequence[SweepRow]) -> Iterator[tuple[str, list[list[str]]]]:
    titles = list(dict.fromkeys(title for row in rows for title in row.gains))
    for combination in dict.fromkeys(row.planned.combination for row in rows):
        chosen = [row for row in rows if row.planned.combination == combination]
        table = [["seed", "verdict", *titles]]
        table += [[str(row.planned.seed), row.verdict, *(_text(row.gains.get(title)) for title in titles)] for row in chosen]
        if finished := [row for row in chosen if row.gains]:
            # A gain that is missing in one run has no mean.
            values = [[row.gains[title] for row in finished] if all(title in row.gains for row in finished) else [] for title in titles]
            between = [between_runs([gain.value for gain in gains]) for gains in values]
            within = [within_runs(gains) if gains else None for gains in values]
            claimed = [claimed_mean(gains) for gains in values]
            for kind, means in {"between": between, "within": within}.items():
                marks = [" *" if mean is not None and mean == claim else "" for mean, claim in zip(means, claimed, strict=True)]
                texts = [_text(mean) + mark for mean, mark in zip(means, marks, strict=True)]
                table.append([f"mean over {len(finished)}, {kind} runs", "", *texts])
        yield combination, table


def _text(value: Estimate | None) -> str:
    return "-" if value is None else value.text(Unit.ELO)


def inputs_of(machine: Machine) -> Callable[[Settings], dict[str, str]]:
    """Return a function: settings -> hashes of a run's code, packages, engine and files."""
    from steps.run.outside import OUTSIDE

    known: dict[str, dict[str, str]] = {}

    def inputs(settings: Settings) -> dict[str, str]:
        sections = repr([settings.boards, settings.evaluation, settings.policy, settings.language])
        if sections not in known:
            known[sections] = {"code": _code(settings.policy.kind, settings.policy.network), "lock": sha256_file(LOCK)}
            for outside in (Outside.SOURCES, Outside.BOOK, Outside.MODEL):
                known[sections] |= OUTSIDE[outside](settings, machine)
        return known[sections]

    return inputs


def _code(kind: str, network: str) -> str:
    steps = [step_of(name) for name in STEPS[1:-1]]  # Without `start` and `end`.
    return sha256_json([code_hash(step.variant(kind).module, kind, network) for step in steps])


def _run_all(plan: Sequence[PlannedRun], folder: Path, store: Store) -> None:
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    finished = {row.planned.key for row in read_sweep(plan, store) if row.is_finished}
    click.echo(f"Sweep {folder.name}: {len(plan)} runs, {len(finished)} of them are finished")
    for number, run in enumerate(plan, start=1):
        if run.key in finished:
            continue
        log, prefix, began = folder / f"run-{number}.log", f"[{number}/{len(plan)}]", time.monotonic()
        click.echo(f"{prefix} {run.name}: log in {log}")
        code = _run_flow(run, folder.name, log, prefix)
        verdict = f"FAILED with exit code {code}" if code else read_sweep([run], store)[0].verdict
        click.echo(f"{prefix} {verdict} after {duration(time.monotonic() - began)}")


def _run_flow(run: PlannedRun, sweep: str, log: Path, prefix: str) -> int:
    """Return the flow's exit code. If this process is killed, the flow saves a checkpoint and ends."""
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid()), SWEEP_VARIABLE: f"{sweep}/{run.key}"}
    arguments = [sys.executable, str(ROOT / FLOW_FILE), "--config-value", "settings", run.launch.text, "run"]
    with (
        log.open("ab") as file,
        subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as flow,
    ):
        assert flow.stdout is not None
        for line in flow.stdout:
            file.write(line)
            file.flush()
            if begun := _STEP_BEGINS.search(line.decode("utf-8", "replace")):
                click.echo(f"{prefix} {begun[0]}")
    return flow.returncode
