"""The command `chess-grpo solve`: the fraction of Lichess puzzles and of EPD test suites that a policy solves."""

import argparse
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from grpo.dataset.games import SourceError
from grpo.dataset.streams import FileKind, SourceFile, find_files, read_chunks
from steps.cli.parser import count
from steps.run.machine import Machine
from steps.run.terminal_lines import say
from steps.track.find import POLICY_NAMES

if TYPE_CHECKING:
    from grpo.match.players import Player

_MIN_OF_GROUP: Final = 20


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `solve`."""
    solve = commands.add_parser(
        "solve",
        description="Solve Lichess puzzles (.csv), reported by rating and theme, and EPD test suites (.epd) by a policy's best moves; files"
        " may be compressed. All fractions have 95 % intervals. Unusable entries are counted, with the first one.",
    )
    solve.add_argument("model", metavar="MODEL", help=POLICY_NAMES)
    solve.add_argument("files", nargs="+", metavar="FILE", help="files, folders, globs or s3:// addresses")
    solve.add_argument("--limit", type=count, metavar="N", help="only the first N usable exercises of each file")
    solve.set_defaults(run=_solve)


def _solve(given: argparse.Namespace) -> int:
    files = find_files(given.files)
    for file in files:
        if file.kind == FileKind.GAMES:
            raise SourceError(f"{file.uri}: games have no solutions; give Lichess puzzles (.csv) or EPD suites (.epd)")
    # Slow imports come after all checks that do not need them.
    from steps.policies.open import open_policy
    from steps.run.device import torch_device
    from steps.track.find import find_policy

    machine = Machine.here()
    model = find_policy(given.model, machine)
    player = open_policy(model.folder, torch_device(machine)).best_player(given.model, seed=0, stream=("exercises",))
    say(f"{given.model}: run {model.run}, weights {model.weights_hash[:12]}; best moves; 95 % intervals")
    for number, file in enumerate(files, 1):
        say(f"solving {file.name} ({number} of {len(files)})", sys.stderr)
        print(f"\n{file.name}\n{_of_file(file, player, given.limit)}")
    return 0


def _of_file(file: SourceFile, player: "Player", limit: int | None) -> str:
    """Return the results for one file as text; raises SourceError when there is nothing to solve in it."""
    from grpo.match.exercises import Exercise, read_puzzles_with_answers, read_suite, solve, solved_fraction

    read = read_puzzles_with_answers if file.kind == FileKind.PUZZLES else read_suite
    exercises: list[Exercise] = []
    left_out: list[str] = []
    for entry in read(read_chunks(file), file.name):
        if isinstance(entry, str):
            left_out.append(entry)
        else:
            exercises.append(entry)
            if len(exercises) == limit:
                break  # Lichess's whole table has millions.
    remark = f"left out: {len(left_out):,}; the first: {left_out[0]}" if left_out else ""
    if not exercises:
        raise SourceError(f"{file.uri}: it has nothing to solve ({remark or 'it is empty'}); give puzzles, or EPD with bm or am")
    solved, counts = solve(player, exercises)
    by_group: dict[str, list[bool]] = defaultdict(list)
    for exercise, is_solved in zip(exercises, solved, strict=True):
        for group in exercise.groups:
            by_group[group].append(is_solved)
    shown = {"solved": solved} | {group: by_group[group] for group in sorted(by_group) if len(by_group[group]) >= _MIN_OF_GROUP}
    rows = [f"  {name:<{max(map(len, shown))}}  {solved_fraction(of)}" for name, of in shown.items()]
    return "\n".join([*rows, *([f"  answers: {counts}"] if counts.num_answers else []), *([f"  {remark}"] if remark else [])])
