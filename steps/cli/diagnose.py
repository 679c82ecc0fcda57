"""The command `chess-grpo diagnose`: findings from a run's training history."""

from collections.abc import Sequence
from pathlib import Path

import click

from grpo.base.errors import PlainError
from grpo.base.files import read_lines
from grpo.diagnosis.diagnose import FINDINGS, HEALTHY, NOT_JUDGED, diagnose
from grpo.diagnosis.history import History, HistoryError, read_tables
from grpo.diagnosis.records import Record
from steps.names import HISTORY
from steps.run.machine import Machine
from steps.run.records import Run
from steps.run.store import Store
from steps.run.work import read_history, read_journal, record_of
from steps.track.find import LAST, NotFoundError, find_run, is_folder

EXIT_CODES = {HEALTHY: 0, FINDINGS: 1, NOT_JUDGED: 3}
UNUSABLE = 2


@click.command()
@click.argument("names", metavar="[RUN | FILE...]", nargs=-1)
def command(names: tuple[str, ...]) -> int:
    """Diagnose a run from its training history: named findings, each with evidence, meaning and advice.

    RUN is an id, `last` (default), or a folder with a history.jsonl. FILEs are tables of one run, CSV or JSON lines, also of another
    trainer. The exit code is 0 when healthy, 1 with findings, 2 when the input is unusable, 3 when it says too little to judge.
    """
    try:
        shown, history = _input(names or (LAST,))
    except PlainError as error:
        click.echo(f"chess-grpo diagnose: {error}", err=True)
        return UNUSABLE
    found = diagnose(history)
    click.echo("\n\n".join(part for part in (f"{shown}: {found.tag}", _columns(history), found.text()) if part))
    return EXIT_CODES[found.verdict]


def _columns(history: History) -> str:
    """Return which columns of a foreign table were read and which not."""
    if history.is_ours:
        return ""
    used = {series.column for series in history.series.values()} | history.not_finite.keys()
    return f"columns used: {', '.join(sorted(used)) or 'none'}; not used: {', '.join(history.unused) or 'none'}"


def _input(names: Sequence[str]) -> tuple[str, History]:
    paths = [Path(name) for name in names]
    if all(path.is_file() for path in paths):
        return ", ".join(path.name for path in paths), read_tables(paths)
    if len(names) > 1:
        missing = next(path for path in paths if not path.is_file())
        raise HistoryError(f"{missing} is not a file; give tables of one run, or the id of one run")
    return _run_history(names[0], Store.of(Machine.here()))


def _run_history(name: str, store: Store) -> tuple[str, History]:
    """Return whose history of GRPO it is, and the history.

    Args:
        name: a folder with a history (an output of `finetune`, or the folder of one in progress), or one of `RUN_NAMES`; `last` is the
            newest run that has a history, also one that failed.
        store: has the records and outputs.

    Raises NotFoundError.
    """
    if is_folder(name):
        if not (records := _logged(Path(name))):
            raise NotFoundError(f"{name} has no {HISTORY} with records in it; give an output of finetune, or a run's id")
        return name, History.of_records(records)
    run = find_run(name, store, has=lambda run: bool(_trained(run, store)))
    if not (records := _trained(run, store)):
        raise NotFoundError(f"run {run.name} has no history of GRPO here: it has not completed the first step of finetune")
    return f"run {run.name}", History.of_records(records)


def _trained(run: Run, store: Store) -> list[Record]:
    """Return what a run's GRPO recorded: in its output, else in the progress folder of its latest attempt on this disk."""
    if (finetuned := run.output_of("finetune")) is not None:
        return read_history(store.file(finetuned, HISTORY).parent)
    attempts = [attempt for attempt in run.attempts if attempt.step == "finetune"]
    return _logged(store.progress(attempts[-1].step, attempts[-1].version)) if attempts else []


def _logged(folder: Path) -> list[Record]:
    """Return the records of a step at work or done, up to the first that is torn; of a copied history too, which is no journal."""
    if rows := read_journal(folder):
        return [record_of(row["record"]) for row in rows if not row["aside"]]
    return [record_of(row) for row in read_lines(folder / HISTORY) if "step" in row]
