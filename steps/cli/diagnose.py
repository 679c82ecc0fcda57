"""Command `chess-grpo diagnose`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from grpo.base.errors import PlainError
from grpo.diagnosis.diagnose import FINDINGS, HEALTHY, NOT_JUDGED, NOT_SHOWN, diagnose
from grpo.diagnosis.history import History, read_tables
from grpo.diagnosis.tables import HistoryError
from grpo.metrics.table import METRICS
from grpo.settings.tree import Settings
from steps.names import HISTORY
from steps.run.machine import Machine
from steps.run.records import Run
from steps.run.store import Store
from steps.run.work import JOURNAL
from steps.track.find import LAST, NotFoundError, find_run, is_folder

_EXIT_CODES: Final = {HEALTHY: 0, FINDINGS: 1, NOT_JUDGED: 3, NOT_SHOWN: 4}


@click.command()
@click.argument("names", metavar="[RUN | FILE...]", nargs=-1)
def command(names: tuple[str, ...]) -> int:
    """Diagnose a run from its training history: findings with evidence, meaning and advice.

    RUN is a run id, `last` (default), or a folder with history.jsonl. FILEs are CSV or JSON tables of one run, from any
    trainer. Exit codes: 0 healthy, 1 findings, 2 unusable input, 3 too few records, 4 no finding and no proof that the reward rises.
    """
    try:
        title, history, settings = _input(names or (LAST,))
    except PlainError as error:
        click.echo(f"chess-grpo diagnose: {error}", err=True)
        return 2
    diagnosis = diagnose(history, settings)
    not_judged = f"not judged: {', '.join(diagnosis.not_judged)}" if diagnosis.not_judged and not history.is_ours else ""
    parts = (f"{title}: {diagnosis.tag}", _columns(history), diagnosis.text(), not_judged)
    click.echo("\n\n".join(part for part in parts if part))
    return _EXIT_CODES[diagnosis.verdict]


def _columns(history: History) -> str:
    """Return the used and unused columns. In this project's histories, only unknown columns are shown."""
    if not history.is_ours:
        return history.columns_text()
    # The journal has three more columns.
    unknown = [column for column in history.unused if column not in METRICS and column not in ("time", "aside", "record")]
    return f"not used: {', '.join(unknown)}" if unknown else ""


def _input(names: Sequence[str]) -> tuple[str, History, Settings | None]:
    paths = [Path(name) for name in names]
    if all(path.is_file() for path in paths):
        return ", ".join(path.name for path in paths), read_tables(paths), None
    if len(names) > 1:
        missing = next(path for path in paths if not path.is_file())
        raise HistoryError(f"{missing} is not a file; give tables of one run, or the id of one run")
    return _run_history(names[0], Store.of(Machine.here()))


def _run_history(name: str, store: Store) -> tuple[str, History, Settings | None]:
    """Return a title, the GRPO history, and the settings (None if unknown). `name`: a run's id, `last`, or a folder with a history."""
    if is_folder(name):
        if (path := _history_file(Path(name))) is None:
            raise NotFoundError(f"{name} has no {HISTORY} with records; give the output folder of `finetune`, or a run's id")
        return name, read_tables([path]), None
    run = find_run(name, store, has=lambda run: _history_of(run, store) is not None)
    if (path := _history_of(run, store)) is None:
        raise NotFoundError(f"run {run.name} has no GRPO history here: `finetune` has completed no GRPO step, or only on another machine")
    try:
        settings = Settings.model_validate(run.facts["settings"])
    except (KeyError, ValueError):  # Settings of another version of the code.
        settings = None
    return f"run {run.name}", read_tables([path]), settings


def _history_of(run: Run, store: Store) -> Path | None:
    if (finetuned := run.output_of("finetune")) is not None:
        return store.file(finetuned, HISTORY)
    attempts = [attempt for attempt in run.attempts if attempt.step == "finetune"]
    return _history_file(store.progress(attempts[-1].step, attempts[-1].version)) if attempts else None


def _history_file(folder: Path) -> Path | None:
    """Return the history, or an unfinished step's journal with the same records; None without records."""
    paths = (folder / HISTORY, folder / JOURNAL)
    return next((path for path in paths if path.is_file() and path.stat().st_size), None)
