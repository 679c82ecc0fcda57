"""The command `chess-grpo solve`: the fraction of Lichess puzzles and of EPD test suites that a policy solves."""

import argparse
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from grpo.reading.games import SourceError
from grpo.reading.streams import FileKind, SourceFile, find_files, read_chunks
from steps.runs.names import LAST, POLICY_NAMES, NotFoundError
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say
from steps.step_io.aliases import ALIASES

if TYPE_CHECKING:
    from grpo.evaluation.exercises import LeftOut, LeftOuts, Solver

_Exercise = TypeVar("_Exercise")
_MIN_OF_THEME: Final = 20  # Themes with fewer puzzles are only in the JSON.


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `solve`."""
    solve = commands.add_parser(
        "solve",
        description="Solve Lichess puzzles (.csv), reported by rating and theme, and EPD test suites (.epd); files may be compressed. All"
        " fractions have 95 % intervals. Unusable entries are counted, with the first example of each reason.",
    )
    solve.add_argument("model", metavar="MODEL", help=POLICY_NAMES)
    solve.add_argument("files", nargs="+", metavar="FILE", help="files, folders, globs or s3:// addresses")
    solve.add_argument("--limit", type=_count, metavar="N", help="only the first N usable exercises of each file")
    solve.add_argument(
        "--temperature",
        type=_temperature,
        default=0.0,
        metavar="T",
        help="sampling temperature of moves; fractions are then expectations (default: best moves)",
    )
    solve.add_argument("--json", action="store_true", help="print all numbers as JSON")
    solve.set_defaults(run=_solve)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of exercises: give 1 or more")
    return int(text)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value == 0 or 0.001 <= value <= 1_000):
        raise argparse.ArgumentTypeError(f"{text!r} is not a temperature: give 0 for best moves, or 0.001 to 1,000")
    return value


def _solve(given: argparse.Namespace) -> int:
    _refuse_swapped(given)
    files = find_files(given.files)
    for file in files:
        if file.kind == FileKind.GAMES:
            raise SourceError(f"{file.uri}: games have no solutions; give Lichess puzzles (.csv) or EPD suites (.epd)")
    # Slow imports come after all checks that do not need them.
    from steps.policies.open import open_policy
    from steps.runs.find_policy import find_policy
    from steps.runtime.device import torch_device

    machine = Machine.here()
    model = find_policy(given.model, machine)
    policy = open_policy(model.folder, torch_device(machine))
    solver = policy.solver(temperature=given.temperature)
    found, unusable = {}, {}
    for number, file in enumerate(files, 1):
        say(f"solving {file.name} ({number} of {len(files)})", sys.stderr)
        try:
            found[file.name] = _of_file(file, solver, limit=given.limit)
        except SourceError as error:  # The others still count.
            if len(files) == 1:
                raise
            unusable[file.name] = str(error)
            say(f"chess-grpo: {error}", sys.stderr)
    replies = policy.solver_replies()
    facts = {
        "model": {"name": given.model, "run": model.run, "policy_step": model.policy_step, "weights_hash": model.weights_hash},
        "temperature": given.temperature,
        "limit": given.limit,
        **({} if replies is None else {"answers": replies.facts()}),
        "files": {name: facts for name, (facts, _) in found.items()} | {name: {"error": why} for name, why in unusable.items()},
    }
    if given.json:
        print(json.dumps(facts, indent=2))
        return int(bool(unusable))
    moves = f"moves at temperature {given.temperature:g}, expected fractions" if given.temperature else "best moves"
    step = "" if model.policy_step is None else f", step {model.policy_step:,}"
    say(f"{given.model}: run {model.run}{step}, weights {model.weights_hash[:12]}; {moves}; 95 % intervals")
    if replies is not None:
        failed = f"{replies.num_unreadable:,} unreadable, {replies.num_illegal:,} with an illegal move"
        say(f"{replies.num_answers:,} answers, one per position: {failed}; these count as not solved")
    for name, (_, text) in found.items():
        print(f"\n{name}\n{text}")
    return int(bool(unusable))


def _refuse_swapped(given: argparse.Namespace) -> None:
    """Raise NotFoundError where the model is a file and a file is a model's name: `solve puzzles.csv champion`."""
    names = [name for name in given.files if re.fullmatch("|".join((LAST, *ALIASES)), name) and not Path(name).exists()]
    if names and (Path(given.model).is_file() or Path(given.model).suffix in (".csv", ".epd")):
        right = shlex.join(["chess-grpo", "solve", names[0], given.model, *(name for name in given.files if name not in names)])
        raise NotFoundError(f"{given.model} is a file, and {names[0]} a policy: the policy comes first, as in `{right}`")


def _of_file(file: SourceFile, solver: "Solver", *, limit: int | None) -> tuple[dict[str, Any], str]:
    """Return the results for one file, as plain data and as text.

    Raises SourceError when there is nothing to solve in it.
    """
    from grpo.evaluation.exercises import LeftOuts

    left_outs = LeftOuts()
    solve = _puzzles if file.kind == FileKind.PUZZLES else _suite
    facts, text = solve(file, solver, left_outs, limit)
    for reason, left_out in left_outs.facts().items():
        text += f"\n  left out  {reason}: {left_out['count']:,}; the first: {left_out['first']}"
    return {"kind": file.kind.value, **facts, "left_out": left_outs.facts()}, text


def _puzzles(file: SourceFile, solver: "Solver", left_outs: "LeftOuts", limit: int | None) -> tuple[dict[str, Any], str]:
    from grpo.evaluation.puzzles import puzzle_report, read_puzzle_table, solve_puzzles

    puzzles = _usable(file, read_puzzle_table, left_outs, limit)
    report = puzzle_report(puzzles, solve_puzzles(solver, puzzles).tolist())
    themes = {name: share for name, share in report.by_theme.items() if share.num >= _MIN_OF_THEME}
    shares = {"solved": report.solved, **report.by_band, **themes}
    lines = [f"  performance rating, on the scale of Lichess's puzzles: {report.performance}", *_table(shares)]
    return report.facts(), "\n".join(lines)


def _suite(file: SourceFile, solver: "Solver", left_outs: "LeftOuts", limit: int | None) -> tuple[dict[str, Any], str]:
    from grpo.evaluation.suites import read_suite, solve_suite, suite_report

    problems = _usable(file, read_suite, left_outs, limit)
    report = suite_report(problems, solve_suite(solver, problems))
    has_points = any(problem.points for problem in problems)
    shares = {"solved": report.solved, **({"points": report.points} if has_points else {})}
    for suite, (solved, points) in report.by_suite.items():
        shares |= {suite: solved, **({f"{suite}, points": points} if has_points else {})}
    return report.facts(), "\n".join(_table(shares))


def _usable(
    file: SourceFile,
    read: Callable[[Iterable[bytes], str], Iterator["_Exercise | LeftOut"]],
    left_outs: "LeftOuts",
    limit: int | None,
) -> list[_Exercise]:
    from grpo.evaluation.exercises import LeftOut

    def exercises() -> Iterator[_Exercise]:
        for entry in read(read_chunks(file), file.name):
            if isinstance(entry, LeftOut):
                left_outs.add(entry)
            else:
                yield entry

    found = list(islice(exercises(), limit))
    if not found:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in sorted(left_outs.counts.items()))
        raise SourceError(f"{file.uri}: it has nothing to solve ({reasons or 'it is empty'}); give puzzles, or EPD with bm, am or points")
    return found


def _table(shares: dict[str, Any]) -> list[str]:
    width = max(map(len, shares))
    return [f"  {name:<{width}}  {share}" for name, share in shares.items()]
