"""The command `chess-grpo match`: paired games between two players, with score, Elo and confidence intervals."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo.base.files import json_text, replace_file
from grpo.board.phases import PHASES, Phase
from grpo.engine.identity import identify
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.settings.tree import ConfigError, Settings
from steps.cli.parser import add_settings, given_settings
from steps.cli.players import ALLOWED, Entrant, entered, parse_contestant, require_policies
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say
from steps.step_io.terminal import TerminalSink

if TYPE_CHECKING:
    from grpo.play.annotations import AnnotatedGame
    from grpo.play.matches import MatchResult

_DEFAULT_PAIRS: Final = 100


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `match` to the commands."""
    parser = commands.add_parser(
        "match",
        description=f"Games between two players: each opening is played with both colors. A player is one of: {ALLOWED}.",
    )
    parser.add_argument("first", metavar="A", help="the player whose score is reported")
    parser.add_argument("second", metavar="B", help="the opponent")
    parser.add_argument("--pairs", type=int, default=_DEFAULT_PAIRS, metavar="N", help=f"openings (default {_DEFAULT_PAIRS})")
    parser.add_argument("--openings", metavar="FILE", help="an opening book (PGN, EPD, FEN, may be compressed) instead of random plies")
    parser.add_argument("--boards", type=Path, metavar="FOLDER", help="with --phase: start from held-out boards of this dataset")
    parser.add_argument(
        "--phase", choices=[phase.value for phase in PHASES], help="start from balanced positions of this phase, of --boards or --openings"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="random seed; another seed gives other openings")
    parser.add_argument("--max-plies", type=int, metavar="N", help="a game of this length is a draw")
    parser.add_argument(
        "--adjudicate",
        action=argparse.BooleanOptionalAction,
        help="report a second score, by engine value of the last position of games drawn by repetition, fifty moves or the ply cap"
        " (default: if most games ended so)",
    )
    parser.add_argument("--pgn", type=Path, metavar="FILE", help="write all games to this file; it must not exist")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a viewer of six games chosen by rule; it must not exist")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file; it must not exist")
    add_settings(parser)  # Only the sections `evaluation` and `values` are used.
    parser.set_defaults(run=_match)


def _match(given: argparse.Namespace) -> int:
    settings = _settings(given)
    if (given.boards is not None and given.phase is None) or (given.phase is not None and given.boards is None and given.openings is None):
        raise ConfigError("--phase and --boards go together: positions of a phase come from a dataset, or by --openings from a book")
    if given.boards is not None and given.openings is not None:
        raise ConfigError("--boards and --openings: give only one of the two")
    if given.pairs < 1:
        raise ConfigError(f"--pairs {given.pairs}: give at least 1")
    contestants = [parse_contestant(given.first), parse_contestant(given.second)]
    files = [path for path in (given.pgn, given.html, given.json) if path is not None]
    _refuse_existing(files)
    machine = Machine.here()
    require_policies(contestants, machine)

    # Below the checks: torch takes seconds to import, and a typo gets its answer at once.
    from grpo.play.pgn import match_pgn
    from grpo.play.viewer import viewer_page
    from steps.cli.match_text import match_summary, match_text
    from steps.runtime.device import torch_device

    device = torch_device(machine)
    terminal = TerminalSink("match", (), lambda text: say(text, sys.stderr))
    with entered(contestants, machine=machine, device=device, seed=settings.seed, num_processes=machine.num_threads) as entrants:
        result = _played(entrants, settings, machine, given, terminal=terminal)
        facts = match_summary(result, entrants, settings, identify(machine.stockfish))
        annotated = () if given.pgn is None and given.html is None else _annotated(result, entrants, settings, machine)
    say(match_text(result, entrants))
    event = f"{result.first} against {result.second}"
    if given.pgn is not None:
        players = {f"{place}Player": _described(entrant.facts) for place, entrant in zip(("First", "Second"), entrants, strict=True)}
        pgn = match_pgn(
            result,
            event=event,
            seed=settings.seed,
            played_on=datetime.now(UTC).date(),
            facts=players,
            annotated={game.index: game for game in annotated},
        )
        replace_file(given.pgn, pgn.encode())
    if given.html is not None:
        replace_file(given.html, viewer_page(annotated, title=event, event=event).encode())
    if given.json is not None:
        replace_file(given.json, json_text(facts).encode())
    if files:
        terminal.say(f"written: {', '.join(map(str, files))}")
    return 0


def _settings(given: argparse.Namespace) -> Settings:
    lines = list(given.set)
    if given.seed is not None:
        lines.append(f"seed = {given.seed}")
    if given.max_plies is not None:
        lines.append(f"evaluation.max_plies = {given.max_plies}")
    if given.openings is not None:
        lines.append(f"evaluation.opening_book = {json.dumps(given.openings)}")
    return given_settings(argparse.Namespace(config=given.config, set=lines))


def _refuse_existing(paths: Sequence[Path]) -> None:
    """Raise ConfigError for a file that exists or could not be written after the games."""
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} already exists; name another file, or remove it")
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.absolute().parent}; create it, or name another")
    if len({path.absolute() for path in paths}) < len(paths):
        twice = next(path for path in paths if sum(path.absolute() == other.absolute() for other in paths) > 1)
        raise ConfigError(f"two of --pgn, --html and --json name {twice}; name different files")


def _played(
    entrants: Sequence[Entrant],
    settings: Settings,
    machine: Machine,
    given: argparse.Namespace,
    *,
    terminal: TerminalSink,
) -> "MatchResult":
    from grpo.play.adjudication import adjudicate
    from grpo.play.matches import MOSTLY_UNDECIDED, play_match

    config = settings.evaluation
    with EnginePool(machine.stockfish, num_processes=machine.num_threads, options={"Hash": PLAYING_HASH_MIB}) as pool:
        openings = _openings(settings, given, pool)
        terminal.say(f"openings: {len(openings):,}, games: {2 * len(openings):,}")
        result = play_match(
            entrants[0].player,
            entrants[1].player,
            openings,
            max_plies=config.max_plies,
            on_games_done=lambda done: terminal.progress(done, 2 * given.pairs, "games"),
        )
        if given.adjudicate or (given.adjudicate is None and result.undecided_fraction() > MOSTLY_UNDECIDED):
            return adjudicate(result, pool, depth=config.adjudication_depth, centipawns=config.adjudication_centipawns)
    return result


def _annotated(result: "MatchResult", entrants: Sequence[Entrant], settings: Settings, machine: Machine) -> "tuple[AnnotatedGame, ...]":
    """Return the games worth looking at; positions are searched as for the reward."""
    from grpo.engine.move_values import engine_options
    from grpo.play.annotations import annotate
    from grpo.play.highlights import choose_highlights

    policies = (entrants[0].move_probabilities, entrants[1].move_probabilities)
    with EnginePool(machine.stockfish, num_processes=machine.num_threads, options=engine_options(settings.values)) as pool:
        return annotate(result, choose_highlights(result), policies=policies, pool=pool, config=settings.values)


def _openings(settings: Settings, given: argparse.Namespace, pool: EnginePool) -> list[str]:
    from grpo.base.seeding import numpy_stream
    from grpo.play.openings import in_random_order, make_openings, phase_openings, read_book

    config, rng = settings.evaluation, numpy_stream(settings.seed, "openings", "match")
    if given.phase is None:
        return make_openings(config, count=given.pairs, rng=rng, pool=pool, exclude=set())
    if given.boards is None:
        boards = read_book(config.opening_book, max_plies=config.opening_book_plies).in_random_order(rng, Counter())
    else:
        boards = in_random_order(_heldout_fens(given.boards), rng)
    return phase_openings(boards, Phase(given.phase), config=config, count=given.pairs, pool=pool, exclude=set())


def _heldout_fens(folder: Path) -> list[str]:
    from grpo.dataset.table import Split
    from steps.step_io.dataset import read_boards
    from steps.step_io.names import BOARDS

    if not (folder / BOARDS).is_file():
        raise ConfigError(f"{folder} is not a dataset: it has no {BOARDS}; give the output of the step join_boards")
    return [row["fen"] for row in read_boards(folder).select(["fen", "split"]).to_pylist() if row["split"] == Split.HELDOUT]


def _described(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
