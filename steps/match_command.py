"""The command `chess-grpo match`: who is stronger, how sure that is, and what these games could have shown."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from grpo.adjudication import adjudicate
from grpo.config import DEFAULT_PRESET, ConfigError, Settings, read_settings
from grpo.content import json_text, replace_file
from grpo.engine import EnginePool, identify
from grpo.match_pgn import match_pgn
from grpo.matches import MatchResult, play_match
from grpo.openings import make_openings
from grpo.planning import Assumptions, Certainty, smallest_difference
from grpo.seeding import numpy_stream
from grpo.statistics import LEVEL, MatchStatistics, Outcomes, match_statistics
from steps.contestants import ALLOWED, Contestant, Entrant, entered, parse_contestant
from steps.device import torch_device
from steps.machine import Machine
from steps.work import TerminalSink

_DEFAULT_PAIRS: Final = 100
_ENGINE_HASH_MIB: Final = 1
_CERTAINTY: Final = Certainty(level=LEVEL, probability=0.8, is_padded=True)
_MOSTLY_UNDECIDED: Final = 0.5
"""More draws for lack of technique than this, and games are adjudicated unless that is forbidden."""


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `match` to the commands."""
    parser = commands.add_parser(
        "match",
        help="paired games between two players, with intervals",
        description=f"Games between two players: each opening is played with both colours. A player is one of: {ALLOWED}.",
    )
    parser.add_argument("first", metavar="A", help="the player whose score it is")
    parser.add_argument("second", metavar="B", help="the opponent")
    parser.add_argument("--pairs", type=int, default=_DEFAULT_PAIRS, metavar="N", help=f"openings (default {_DEFAULT_PAIRS})")
    parser.add_argument("--openings", metavar="FILE", help="a book (PGN, EPD, FEN, packed or not) instead of random plies")
    parser.add_argument("--seed", type=int, metavar="S", help="root of the random streams; another seed has other openings")
    parser.add_argument("--max-plies", type=int, metavar="N", help="a game that gets here is a draw")
    parser.add_argument(
        "--adjudicate",
        action=argparse.BooleanOptionalAction,
        help="give a second score, by the value of the last position of games drawn by repetition, fifty moves or the ply cap"
        " (default: where most games ended so)",
    )
    parser.add_argument("--pgn", type=Path, metavar="FILE", help="write all games here; it must not be there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that is known of the match here; it must not be there")
    parser.add_argument(
        "--config", default=DEFAULT_PRESET, metavar="NAME", help="a preset, or a TOML file: its section `evaluation` is used"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="such as evaluation.opening_plies=6")
    parser.set_defaults(run=_match)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """One way to count the games, from the first player's side."""

    name: str
    statistics: MatchStatistics
    pentanomial: tuple[float, ...]
    """Pairs that scored 0, 0.5, 1, 1.5 and 2 of 2."""
    text: str
    draw_rate: float
    smallest_elo: float | None
    """What as many games, of as many draws, show with probability 0.8; None where they show nothing."""


def _match(given: argparse.Namespace) -> int:
    settings = _settings(given)
    if given.pairs < 1:
        raise ConfigError(f"--pairs {given.pairs}: at least one opening is played")
    contestants = [parse_contestant(given.first), parse_contestant(given.second)]
    _refuse_existing([path for path in (given.pgn, given.json) if path is not None])
    machine = Machine.here()
    device = torch_device(machine)
    terminal = TerminalSink("match", (), lambda text: print(text, file=sys.stderr, flush=True))
    with entered(contestants, machine=machine, device=device, seed=settings.seed, num_processes=machine.num_threads) as entrants:
        result = _played(entrants, settings, machine, num_pairs=given.pairs, adjudicate_or_auto=given.adjudicate, terminal=terminal)
        facts = _facts(result, entrants, settings, identify(machine.stockfish))
    print(match_text(result, contestants))
    if given.pgn is not None:
        players = {f"{place}Player": _described(entrant.facts) for place, entrant in zip(("First", "Second"), entrants, strict=True)}
        pgn = match_pgn(result, event=f"{result.first} against {result.second}", seed=settings.seed, facts=players)
        replace_file(given.pgn, pgn.encode())
    if given.json is not None:
        replace_file(given.json, json_text(facts).encode())
    return 0


def _settings(given: argparse.Namespace) -> Settings:
    lines = [f"preset = {json.dumps(given.config)}", *given.set]
    if given.seed is not None:
        lines.append(f"seed = {given.seed}")
    if given.max_plies is not None:
        lines.append(f"evaluation.max_plies = {given.max_plies}")
    if given.openings is not None:
        lines.append(f"evaluation.opening_book = {json.dumps(given.openings)}")
    return read_settings("\n".join(lines))


def _refuse_existing(paths: Sequence[Path]) -> None:
    """Raise ConfigError for a file that could not be written after the games, or would overwrite another."""
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} is there already; name a file that is not, or remove it")
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.absolute().parent}; make it, or name another")
    if len({path.absolute() for path in paths}) < len(paths):
        raise ConfigError(f"--pgn and --json both name {paths[0]}; name two files")


def _played(
    entrants: Sequence[Entrant],
    settings: Settings,
    machine: Machine,
    *,
    num_pairs: int,
    adjudicate_or_auto: bool | None,
    terminal: TerminalSink,
) -> MatchResult:
    config = settings.evaluation
    with EnginePool(machine.stockfish, num_processes=machine.num_threads, options={"Hash": _ENGINE_HASH_MIB}) as pool:
        openings = make_openings(config, count=num_pairs, rng=numpy_stream(settings.seed, "openings", "match"), pool=pool, exclude=set())
        terminal.say(f"{len(openings):,} openings, {2 * len(openings):,} games")
        result = play_match(
            entrants[0].player,
            entrants[1].player,
            openings,
            max_plies=config.max_plies,
            on_games_done=lambda done: terminal.progress(done, 2 * num_pairs, "games"),
        )
        if adjudicate_or_auto or (adjudicate_or_auto is None and result.share_undecided() > _MOSTLY_UNDECIDED):
            return adjudicate(result, pool, depth=config.adjudication_depth, centipawns=config.adjudication_centipawns)
    return result


def scores(result: MatchResult) -> list[Scored]:
    """Return the score as played, and as adjudicated where there is one."""
    played = [game.score for game in result.games]
    found = [_scored("as played", result.pair_scores(), str(result.interval()), played)]
    if result.is_adjudicated:
        decided = [game.score if game.adjudicated is None else game.adjudicated for game in result.games]
        found.append(_scored("adjudicated", result.pair_scores(adjudicated=True), str(result.interval(adjudicated=True)), decided))
    return found


def _scored(name: str, pair_scores: Sequence[float], text: str, game_scores: Sequence[float]) -> Scored:
    outcomes = Outcomes.of_pairs(pair_scores)
    draw_rate = sum(score == 0.5 for score in game_scores) / len(game_scores)
    smallest = None  # Of nothing but draws.
    if draw_rate < 1:
        assumed = Assumptions(draw_rate=draw_rate, pair_correlation=0.0)
        smallest = smallest_difference(len(game_scores), assumed=assumed, certainty=_CERTAINTY)
    return Scored(
        name=name,
        statistics=match_statistics(outcomes),
        pentanomial=outcomes.counts,
        text=text,
        draw_rate=draw_rate,
        smallest_elo=smallest,
    )


def match_text(result: MatchResult, contestants: Sequence[Contestant]) -> str:
    """Return what the match showed, in words."""
    wins, draws, losses = result.wins_draws_losses()
    lines = [f"{result.first} against {result.second}"]
    for scored in scores(result):
        statistics = scored.statistics
        normalised = statistics.normalised_elo
        lines += [
            f"  {scored.name:13}{scored.text}",
            f"  {'':13}normalised Elo {normalised.value:+.0f} [{normalised.low:+.0f}, {normalised.high:+.0f}],"
            f" likelihood of superiority {statistics.likelihood_of_superiority:.1%}",
            f"  {'':13}{_power(scored, len(result.games))}",
            f"  {'':13}pairs LL {scored.pentanomial[0]}, LD {scored.pentanomial[1]}, LW or DD {scored.pentanomial[2]},"
            f" DW {scored.pentanomial[3]}, WW {scored.pentanomial[4]}",
        ]
    return "\n".join(
        [
            *lines,
            f"  {'games':13}won {wins:,}, drawn {draws:,}, lost {losses:,}",
            f"  {'ends':13}{', '.join(f'{end} {count:,}' for end, count in result.ends().items() if count)}",
            f"  {'sample':13}{result.num_openings:,} distinct openings, {result.num_distinct_games:,} distinct games;"
            f" {_sample(contestants)}",
        ]
    )


def _power(scored: Scored, num_games: int) -> str:
    if scored.smallest_elo is None:
        return f"so many games with {scored.draw_rate:.0%} draws can hardly show any difference: play more"
    return (
        f"{num_games:,} games with {scored.draw_rate:.0%} draws show a difference of {scored.smallest_elo:.0f} Elo with probability"
        f" {_CERTAINTY.probability:.0%}, and a smaller one less often"
    )


def _sample(contestants: Sequence[Contestant]) -> str:
    remarks = []
    if all(contestant.is_deterministic for contestant in contestants):
        remarks.append("both always answer alike, so that the openings are the sample, and more games from them would be the same games")
    else:
        remarks.append("pairs are the sample")
    unrepeatable = [contestant.text for contestant in contestants if not contestant.is_repeatable]
    if unrepeatable:
        remarks.append(f"{' and '.join(dict.fromkeys(unrepeatable))}: drawn by the clock, so that these games cannot be repeated")
    return "; ".join(remarks)


def _facts(result: MatchResult, entrants: Sequence[Entrant], settings: Settings, engine: object) -> dict[str, Any]:
    wins, draws, losses = result.wins_draws_losses()
    return {
        "players": [dict(entrant.facts) for entrant in entrants],
        "seed": settings.seed,
        "evaluation": settings.evaluation.model_dump(mode="json"),
        "engine": str(engine),
        "num_pairs": len(result.games) // 2,
        "num_openings": result.num_openings,
        "num_distinct_games": result.num_distinct_games,
        "is_deterministic": all(entrant.contestant.is_deterministic for entrant in entrants),
        "is_repeatable": all(entrant.contestant.is_repeatable for entrant in entrants),
        "wins": wins,
        "draws": draws,
        "losses": losses,
        "ends": result.ends(),
        "adjudication": None if result.adjudication is None else asdict(result.adjudication),
        "scores": {
            scored.name: {
                **asdict(scored.statistics),
                "pentanomial": list(scored.pentanomial),
                "draw_rate": scored.draw_rate,
                "smallest_elo_shown": scored.smallest_elo,
                "text": scored.text,
            }
            for scored in scores(result)
        },
    }


def _described(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
