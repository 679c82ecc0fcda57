"""Command `chess-grpo match`."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from grpo.base.files import replace_file
from grpo.engine.move_values import engine_options
from grpo.engine.pool import EnginePool
from grpo.match.matches import MatchResult
from grpo.settings.tree import ConfigError, Settings
from grpo.viewer.annotations import AnnotatedGame, annotate
from grpo.viewer.page import viewer_page
from grpo.viewer.pgn import event_pgn
from steps.cli.options import COUNT, given_settings, settings_options
from steps.cli.players import ALLOWED, Entrant, entered, parse_contestant
from steps.cli.tables import text_table
from steps.run.machine import Machine
from steps.run.terminal import TerminalSink


@click.command(help=f"Play paired games: two games per opening, with both colors. A player is one of: {ALLOWED}.")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--pairs", type=COUNT, default=100, metavar="N", help="Number of openings (default 100).")
@click.option("--pgn", type=click.Path(path_type=Path), metavar="FILE", help="Write all games to this new file.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with six of the games to this new file.")
@settings_options  # Another `seed` gives other openings.
def command(first: str, second: str, pairs: int, pgn: Path | None, html: Path | None, **given: Any) -> int:
    settings = given_settings(**given)
    contestants = [parse_contestant(text) for text in (first, second)]
    files = [path for path in (pgn, html) if path is not None]
    _refuse_existing(files)
    machine = Machine.here()
    terminal = TerminalSink("match", (), lambda text: click.echo(text, err=True))
    with entered(contestants, machine, seed=settings.seed, says=terminal.say) as entrants:
        result = _played(entrants, settings, machine, pairs, terminal=terminal)
        annotated = _annotated(result, entrants, settings, machine) if files else {}
    click.echo(_text(result))
    event = f"{result.first} against {result.second}"
    if pgn is not None:
        tags = {"FirstPlayer": entrants[0].about, "SecondPlayer": entrants[1].about}
        today = datetime.now(UTC).date()
        games = event_pgn([result], event=event, seed=settings.seed, played_on=today, facts=tags, annotated=annotated)
        replace_file(pgn, games.encode())
    if html is not None:
        replace_file(html, viewer_page(result, annotated, title=event, event=event).encode())
    if files:
        terminal.say(f"written: {', '.join(map(str, files))}")
    return 0


def _refuse_existing(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} already exists; name another file, or remove it")
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.absolute().parent}; create the folder, or name another")
        if not os.access(path.absolute().parent, os.W_OK):
            raise ConfigError(f"{path}: {path.absolute().parent} is not writable; name another")
    if len({path.absolute() for path in paths}) < len(paths):
        raise ConfigError(f"--pgn and --html both name {paths[0]}; name different files")


def _played(entrants: Sequence[Entrant], settings: Settings, machine: Machine, num_pairs: int, *, terminal: TerminalSink) -> MatchResult:
    from steps.common.measure import Arena

    with Arena(settings, machine, terminal.progress) as arena:
        openings = arena.openings(num_pairs, set(), "match")
        terminal.say(f"openings: {len(openings):,}, games: {2 * len(openings):,}")
        arena.expect(2 * num_pairs, "games")
        return arena.match(entrants[0].player, entrants[1].player, openings)


def _annotated(result: MatchResult, entrants: Sequence[Entrant], settings: Settings, machine: Machine) -> dict[int, AnnotatedGame]:
    policies = (entrants[0].move_probabilities, entrants[1].move_probabilities)
    with EnginePool(machine.stockfish, num_processes=machine.num_engines, options=engine_options()) as pool:
        return annotate(result, policies, pool, depth=settings.boards.depth)


def _text(result: MatchResult) -> str:
    report = result.report()
    # "Adjudicated" gives some draws to the side that the engine finds clearly better.
    rows = [
        ("as played", report.score.score_text),
        ("adjudicated", result.interval(adjudicated=True).score_text),
        ("games", f"won {report.wins:,}, drawn {report.draws:,}, lost {report.losses:,}"),
        ("ends", ", ".join(f"{end} {count:,}" for end, count in report.ends.items() if count)),
        *(("answers", f"{getattr(result, player)}: {counts}") for player, counts in report.answers.items() if counts.num_failed),
        ("sample", f"{report.num_openings:,} distinct openings, two games each"),
    ]
    return f"{result.first} against {result.second}\n{text_table(rows, indent='  ')}"
