"""The command `chess-grpo diagnose`: findings from a run's training history."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from grpo.base.errors import PlainError
from grpo.base.files import MANIFEST, CorruptError, read_json, read_lines
from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.history import Evaluation, History
from grpo.diagnosis.reading import HistoryError, columns_text, read_run_history
from grpo.settings.metrics import Record
from steps.run.aliases import PRETRAINED_STEP
from steps.run.machine import Machine
from steps.run.names import HISTORY, REPORT
from steps.run.records import Run
from steps.run.store import Store
from steps.run.terminal_lines import say
from steps.run.work import counting, read_history, read_journal, record_of
from steps.track.find import LAST, NotFoundError, find_run, is_folder

HEALTHY, FOUND, UNUSABLE = 0, 1, 2


@click.command()
@click.argument("names", metavar="[RUN | FILE...]", nargs=-1)
@click.option("--evals", type=click.Path(path_type=Path), metavar="FILE.csv", help="A table of step, score and games, beside the FILEs.")
@click.option("--settings", type=click.Path(path_type=Path), metavar="FILE.json", help="The run's settings, for remedies that name them.")
def command(names: tuple[str, ...], evals: Path | None, settings: Path | None) -> int:
    """Diagnose a run from its training history: named findings, each with evidence, cause and remedy.

    RUN is an id, `last` (default), or a folder with a history.jsonl. FILEs are tables of one run, CSV or JSON lines, also of another
    trainer. The exit code is 0 when healthy, 1 with findings, 2 when the input is unusable.
    """
    try:
        shown, history, known = _input(names or (LAST,), evals)
        known = known if settings is None else _settings(settings)
    except PlainError as error:
        say(f"chess-grpo diagnose: {error}", sys.stderr)
        return UNUSABLE
    found = diagnose(history, known)
    columns = f"{columns_text(history)}\n" if Path((names or ("",))[0]).is_file() else ""
    say(f"{shown}: {found.tag}\n{columns}\n{found.text()}")
    return HEALTHY if found.is_healthy else FOUND


def _input(names: Sequence[str], evals: Path | None) -> tuple[str, History, Mapping[str, Any] | None]:
    paths = [Path(name) for name in names]
    if all(path.is_file() for path in paths):
        return ", ".join(path.name for path in paths), read_run_history(paths, evals=evals), None
    if len(names) > 1:
        missing = next(path for path in paths if not path.is_file())
        raise HistoryError(f"{missing} is not a file; give tables of one run, or the id of one run")
    if evals is not None:
        raise HistoryError("--evals belongs to tables of another trainer: a run of this project has its own games")
    return _run_history(names[0], Store.of(Machine.here()))


def _run_history(name: str, store: Store) -> tuple[str, History, Mapping[str, Any] | None]:
    """Return whose history of GRPO it is, the history, and the settings; None where they are not known.

    Args:
        name: a folder with a history (an output of `finetune`, or the folder of one in progress), or one of `RUN_NAMES`; `last` is the
            newest run that has a history, also one that failed.
        store: has the records and outputs.

    Raises NotFoundError.
    """
    if is_folder(name):
        folder = Path(name)
        if not (records := _logged(folder)):
            raise NotFoundError(f"{folder} has no {HISTORY} with records in it; give an output of finetune, or a run's id")
        manifest = folder / MANIFEST
        return str(folder), History.of_records(records), read_json(manifest)["parts"]["settings"] if manifest.exists() else None
    run = find_run(name, store, has=lambda run: bool(_trained(run, store)))
    if not (records := _trained(run, store)):
        raise NotFoundError(f"run {run.name} has no history of GRPO here: it has not completed the first step of finetune")
    history = History.of_records(records)
    if (selected := run.output_of("select")) is not None:
        history.evaluations = evaluations_of(read_json(store.file(selected, REPORT)))
    return f"run {run.name}", history, run.facts["settings"]


def _trained(run: Run, store: Store) -> list[Record]:
    """Return what a run's GRPO recorded: in its output, else in the progress folder of its latest attempt on this disk."""
    if (finetuned := run.output_of("finetune")) is not None:
        return read_history(store.file(finetuned, HISTORY).parent)
    attempts = [attempt for attempt in run.attempts if attempt.step == "finetune"]
    return _logged(store.progress(attempts[-1].step, attempts[-1].version)) if attempts else []


def _logged(folder: Path) -> list[Record]:
    """Return the records of a step at work or done, up to the first that is torn; of a copied history too, which is no journal."""
    if rows := counting(read_journal(folder)):
        return [record_of(row["record"]) for row in rows if not row["aside"]]
    return [record_of(line.row) for line in read_lines(folder / HISTORY) if "step" in line.row]


def evaluations_of(report: Mapping[str, Any]) -> tuple[Evaluation, ...]:
    """Return the confirmation by fresh games from a report of `select`; nothing where no checkpoint could play.

    The candidate's score is against the pretrained policy, which scores 0.5 against itself.
    """
    if (games := report["confirmation_best_moves"]) is None:
        return ()
    return (
        Evaluation(step=PRETRAINED_STEP, score=0.5, games=None, low=0.5, high=0.5),
        Evaluation(
            step=report["candidate_step"],
            score=games["score"],
            games=2 * games["num_pairs"],
            low=games["low"],
            high=games["high"],
        ),
    )


def _settings(path: Path) -> Mapping[str, Any]:
    """Return the settings in a JSON file."""
    try:
        found = read_json(path)
    except OSError as error:
        raise HistoryError(f"{path}: cannot be read ({error}); give a JSON file with the run's settings") from None
    except CorruptError as error:
        raise HistoryError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise HistoryError(f'{path}: holds no settings; wanted is a JSON object, such as {{"learning_rate": 1e-5}}')
    return found
