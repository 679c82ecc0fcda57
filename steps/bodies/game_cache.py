"""Precomputed games: other tasks play them before the step that needs them, which plays only what is missing.

A game of a match depends on nothing but its players, its opening and its place in the match; so it is the same whoever plays it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo.base.files import read_json, write_json
from grpo.play.matches import UNDECIDED, Adjudication, End, MatchResult, PlayedGame
from grpo.play.replies import ReplyCounts
from steps.step_io.names import CACHED_GAMES

Pair = tuple[PlayedGame, PlayedGame]
"""An opening's two games: the first player is white in the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPart:
    """A part of the openings of each match that is shared out."""

    part: int
    num_parts: int

    def of(self, numbers: Sequence[int]) -> list[int]:
        """Return this part's numbers; the parts make up the whole."""
        return [number for number in numbers if number % self.num_parts == self.part]


class PrecomputedGames:
    """Pairs of games by the match they belong to and their opening."""

    def __init__(self, matches: Mapping[str, Mapping[str, Pair]] | None = None) -> None:
        self._matches: dict[str, dict[str, Pair]] = {name: dict(pairs) for name, pairs in (matches or {}).items()}

    @classmethod
    def read(cls, folders: Iterable[Path]) -> "PrecomputedGames":
        """Return the games that tasks left in their folders."""
        precomputed = cls()
        for folder in folders:
            for match, games in read_json(folder / CACHED_GAMES).items():
                precomputed.add(match, [_game(facts) for facts in games])
        return precomputed

    def write(self, folder: Path) -> None:
        """Write all games to a folder."""
        write_json(
            folder / CACHED_GAMES,
            {match: [asdict(game) for pair in pairs.values() for game in pair] for match, pairs in self._matches.items()},
        )

    def add(self, match: str, games: Sequence[PlayedGame]) -> None:
        """Keep games, in pairs as a match has them."""
        kept = self._matches.setdefault(match, {})
        kept.update({one.opening: (one, other) for one, other in zip(games[::2], games[1::2], strict=True)})

    def pairs(self, match: str) -> Mapping[str, Pair]:
        """Return opening -> games of a match; empty when none was precomputed."""
        return self._matches.get(match, {})


def put_together(precomputed: Mapping[str, Pair], fresh: MatchResult, openings: Sequence[str]) -> MatchResult:
    """Return one match of the precomputed games and those just played, in the order of the openings that either has."""
    assert fresh.adjudication is not None
    pairs = dict(precomputed) | {one.opening: (one, other) for one, other in zip(fresh.games[::2], fresh.games[1::2], strict=True)}
    games = tuple(game for opening in openings if opening in pairs for game in pairs[opening])
    num_failed = sum(game.end in UNDECIDED and game.adjudicated is None for game in games)
    rule = Adjudication(depth=fresh.adjudication.depth, centipawns=fresh.adjudication.centipawns, num_failed=num_failed)
    return MatchResult(first=fresh.first, second=fresh.second, games=games, adjudication=rule)


def _game(facts: Mapping[str, object]) -> PlayedGame:
    given = {**facts, "moves": tuple(facts["moves"]), "end": End(str(facts["end"]))}  # type: ignore[arg-type]
    for player in ("first_replies", "second_replies"):
        given[player] = None if facts[player] is None else ReplyCounts(**facts[player])  # type: ignore[arg-type]
    return PlayedGame(**given)  # type: ignore[arg-type]
