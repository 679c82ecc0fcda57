"""Command `chess-grpo solve`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import click

from grpo.dataset.games import Rejection, SourceError
from grpo.dataset.streams import FileKind, SourceFile, find_files, opened
from steps.cli.options import COUNT
from steps.cli.tables import text_table
from steps.run.machine import Machine
from steps.track.find import find_policy

if TYPE_CHECKING:
    from grpo.match.players import Player

_MIN_OF_GROUP: Final = 20  # A rating band or theme with fewer puzzles gets no line.


@click.command()
@click.argument("model")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--limit", type=COUNT, metavar="N", help="Use the first N usable exercises of each file.")
def command(model: str, files: tuple[str, ...], limit: int | None) -> int:
    """Print the fraction of exercises that a policy's best moves solve.

    FILE: Lichess puzzles (.csv, also by rating and theme) or EPD suites (.epd); a file, folder, glob or s3:// address, also compressed.
    MODEL: champion, peak, a run id or a folder (docs/commands.md).
    """
    sources = find_files(files)
    for file in sources:
        if file.kind == FileKind.GAMES:
            raise SourceError(f"{file.uri}: games have no solutions; give Lichess puzzles (.csv) or EPD suites (.epd)")
    # Slow imports follow the checks.
    from steps.common.policies.open import open_policy
    from steps.run.device import torch_device

    machine = Machine.here()
    policy = find_policy(model, machine)
    player = open_policy(policy.folder, torch_device(machine)).player(model, temperature=None, seed=0, stream=("exercises",))
    click.echo(f"{model}: run {policy.run}, weights {policy.weights_hash[:12]}; best moves; 95 % intervals")
    for number, file in enumerate(sources, 1):
        click.echo(f"solving {file.name} ({number} of {len(sources)})", err=True)
        print(f"\n{file.name}\n{_results(file, player, limit)}")
    return 0


def _results(file: SourceFile, player: "Player", limit: int | None) -> str:
    from grpo.match.exercises import Exercise, read_puzzles_with_answers, read_suite, solve, solved_fraction
    from grpo.match.replies import ReplyCounts

    read_exercises = read_puzzles_with_answers if file.kind == FileKind.PUZZLES else read_suite
    num_left_out, first_left_out = 0, ""

    def usable(entries: Iterable[Exercise | Rejection]) -> Iterator[Exercise]:
        nonlocal num_left_out, first_left_out
        for entry in entries:
            if isinstance(entry, Exercise):
                yield entry
            else:
                num_left_out += 1
                first_left_out = first_left_out or str(entry)

    num_exercises, num_solved, answers = Counter[str](), Counter[str](), ReplyCounts()
    with opened(file) as stream:
        for exercise, is_solved, counts in solve(player, islice(usable(read_exercises(stream, file.name)), limit)):
            for group in ("", *exercise.groups):  # "" counts all exercises.
                num_exercises[group] += 1
                num_solved[group] += is_solved
            answers += counts
    left_out = f"left out: {num_left_out:,}; the first: {first_left_out}" if num_left_out else ""
    if not num_exercises:
        reason = left_out or "the file is empty"
        raise SourceError(f"{file.uri}: nothing to solve ({reason}); give puzzles, or EPD with best moves (bm) or moves to avoid (am)")
    shown = [group for group in sorted(num_exercises, key=_in_order) if not group or num_exercises[group] >= _MIN_OF_GROUP]
    rows = text_table([(group or "solved", solved_fraction(num_solved[group], num_exercises[group])) for group in shown], indent="  ")
    return "\n".join([rows, *([f"  answers: {answers}"] if answers.num_answers else []), *([f"  {left_out}"] if left_out else [])])


def _in_order(group: str) -> tuple[bool, bool, int, str]:
    low = group.partition("-")[0]
    is_band = low.isdecimal()
    return group != "", not is_band, int(low) if is_band else 0, group
