"""Matches between two players: each opening is played with both colours, and all games advance in lock-step as a batch."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

import chess

from grpo.match.intervals import ScoreInterval, paired_interval
from grpo.match.replies import Reply, ReplyCounts

if TYPE_CHECKING:  # It imports torch, and the pages of results read how games end without that.
    from grpo.match.players import Player


class End(StrEnum):
    """How a game ended."""

    CHECKMATE = "checkmate"
    STALEMATE = "stalemate"
    MATERIAL = "insufficient material"
    REPETITION = "threefold repetition"
    FIFTY_MOVES = "fifty moves"
    PLY_CAP = "ply cap"
    FORFEIT = "no legal move named"
    """The player to move loses: a language model gave no answer with a legal move in all its attempts."""


UNDECIDED: Final = frozenset((End.REPETITION, End.FIFTY_MOVES, End.PLY_CAP))
"""Draws in which one side may have a winning position that it could not convert."""
_LOST_BY_MOVER: Final = frozenset((End.CHECKMATE, End.FORFEIT))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedGame:
    """One game of a match, from the first player's side."""

    opening: str
    first_is_white: bool
    moves: tuple[str, ...]
    end: End
    score: float
    """Score of the first player: 1, 0.5 or 0."""
    adjudicated: float | None = None
    """Adjudicated score of the first player; None if no engine was asked, or if it failed."""
    first_replies: ReplyCounts | None = None
    """Answer counts of the first player if it can fail to name a legal move (a language model), else None."""
    second_replies: ReplyCounts | None = None
    """Answer counts of the second player, likewise."""

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Return the game that `dataclasses.asdict` made plain data of, also when that was JSON in between."""
        names = ("first_replies", "second_replies")
        replies = {name: None if facts[name] is None else ReplyCounts(**facts[name]) for name in names}
        return cls(**{**facts, "moves": tuple(facts["moves"]), "end": End(facts["end"]), **replies})


@dataclass(frozen=True, kw_only=True, slots=True)
class Adjudication:
    """The rule by which undecided games were adjudicated."""

    depth: int
    """Search depth for the final position."""
    centipawns: int
    """An evaluation above this for one side is a win."""
    num_failed: int
    """Games whose final position the engine failed on; they stay draws."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchResult:
    """All games of a match; games 2i and 2i + 1 share an opening and differ in colours."""

    first: str
    second: str
    games: tuple[PlayedGame, ...]
    adjudication: Adjudication | None = None
    """None if the match was not adjudicated."""

    @property
    def num_openings(self) -> int:
        """Number of distinct openings, move numbers ignored: the sample size if both players are deterministic."""
        return len({_without_move_number(game.opening) for game in self.games})

    @property
    def num_distinct_games(self) -> int:
        """Number of games that differ in opening, colours or moves."""
        return len({(_without_move_number(game.opening), game.first_is_white, game.moves) for game in self.games})

    def pair_scores(self, *, adjudicated: bool = False) -> list[float]:
        """Return the first player's mean score in each pair of games, as played or as adjudicated.

        Raises ValueError if `adjudicated` is set and the match was not adjudicated.
        """
        if adjudicated and self.adjudication is None:
            raise ValueError(
                f"the match of {self.first} and {self.second} was not adjudicated: call grpo.match.adjudication.adjudicate first"
            )
        scores = [game.adjudicated if adjudicated and game.adjudicated is not None else game.score for game in self.games]
        return [(one + other) / 2 for one, other in zip(scores[::2], scores[1::2], strict=True)]

    def interval(self, *, adjudicated: bool = False) -> ScoreInterval:
        """Return the first player's score with its 95 % interval, computed over pairs."""
        return paired_interval(self.pair_scores(adjudicated=adjudicated))

    def ends(self) -> dict[str, int]:
        """Return the number of games for every way to end."""
        counts = Counter(game.end for game in self.games)
        return {end.value: counts[end] for end in End}

    def replies(self) -> dict[str, ReplyCounts]:
        """Return player (`first` or `second`) -> answer counts over all games, for players that can fail to name a legal move."""
        of_games = {
            "first": [game.first_replies for game in self.games if game.first_replies is not None],
            "second": [game.second_replies for game in self.games if game.second_replies is not None],
        }
        return {player: sum(counts, ReplyCounts()) for player, counts in of_games.items() if counts}

    def wins_draws_losses(self) -> tuple[int, int, int]:
        """Return the number of games that the first player won, drew and lost, as played."""
        counts = Counter(game.score for game in self.games)
        return counts[1.0], counts[0.5], counts[0.0]

    def facts(self) -> dict[str, Any]:
        """Return the match as plain data: score with interval, as played and as adjudicated, ends of games, answers without a move."""
        wins, draws, losses = self.wins_draws_losses()
        facts = {
            **asdict(self.interval()),
            "text": str(self.interval()),
            "wins": wins,
            "draws": draws,
            "losses": losses,
            "ends": self.ends(),
            "num_openings": self.num_openings,
        }
        if answers := {player: counts.facts() for player, counts in self.replies().items()}:
            facts["answers"] = answers
        if self.adjudication is None:
            return facts
        interval = self.interval(adjudicated=True)
        return {**facts, "adjudicated": asdict(interval) | {"text": str(interval)} | asdict(self.adjudication)}


class _Board:
    """A game in progress with its own repetition count, because python-chess searches back through the game at every ply."""

    def __init__(self, opening: str, first_is_white: bool) -> None:
        self.opening = opening
        self.first_is_white = first_is_white
        self.board = chess.Board(opening)
        self._seen = Counter([_position(self.board)])
        self._num_repeats = 1
        self._num_plies = 0
        self._replies: dict[bool, ReplyCounts] = {}

    def is_first_to_move(self) -> bool:
        return (self.board.turn == chess.WHITE) == self.first_is_white

    def record_reply(self, answer: chess.Move | Reply) -> chess.Move | None:
        """Add an answer's counts, and return its move, or None if the player forfeits."""
        if not isinstance(answer, Reply):
            return answer
        is_first = self.is_first_to_move()
        self._replies[is_first] = self._replies.get(is_first, ReplyCounts()) + answer.counts
        return answer.move

    def push(self, move: chess.Move) -> None:
        self.board.push(move)
        self._num_plies += 1
        if self.board.halfmove_clock == 0:
            self._seen.clear()
        position = _position(self.board)
        self._seen[position] += 1
        self._num_repeats = self._seen[position]

    def end(self, max_plies: int) -> End | None:
        board = self.board
        if not any(board.generate_legal_moves()):
            return End.CHECKMATE if board.is_check() else End.STALEMATE
        if board.is_insufficient_material():
            return End.MATERIAL
        if self._num_repeats >= 3:
            return End.REPETITION
        if board.halfmove_clock >= 100:
            return End.FIFTY_MOVES
        return End.PLY_CAP if self._num_plies >= max_plies else None

    def finished(self, end: End) -> PlayedGame:
        score = 0.5 if end not in _LOST_BY_MOVER else 0.0 if self.is_first_to_move() else 1.0
        return PlayedGame(
            opening=self.opening,
            first_is_white=self.first_is_white,
            moves=tuple(move.uci() for move in self.board.move_stack),
            end=end,
            score=score,
            first_replies=self._replies.get(True),
            second_replies=self._replies.get(False),
        )


def _position(board: chess.Board) -> tuple[int | None, ...]:
    """Return a key that is equal for positions that count as a repetition; building a FEN instead takes 20 times as long."""
    return (
        board.pawns,
        board.knights,
        board.bishops,
        board.rooks,
        board.queens,
        board.kings,
        board.occupied_co[chess.WHITE],
        board.turn,
        board.clean_castling_rights(),
        board.ep_square if board.has_legal_en_passant() else None,
    )


def _without_move_number(fen: str) -> str:
    return " ".join(fen.split(" ")[:5])


def play_match(
    first: "Player",
    second: "Player",
    openings: Sequence[str],
    *,
    max_plies: int,
    on_games_done: Callable[[int], None] | None = None,
    numbers: Sequence[int] | None = None,
) -> MatchResult:
    """Play each opening with both colours and return the games, in the order of the openings.

    Args:
        first: The player whose score is reported.
        second: The opponent.
        openings: FENs of distinct positions.
        max_plies: A game of this length, counted from its opening, is a draw.
        on_games_done: Called from time to time with the number of finished games.
        numbers: Indices of the openings in a larger match of which this is a part, so that players use the same random numbers as there.

    Raises ValueError if a player's move is not legal.
    """
    indices_of_openings = range(len(openings)) if numbers is None else numbers
    game_numbers = [2 * index + colour for index in indices_of_openings for colour in (0, 1)]
    games = [_Board(opening, first_is_white) for opening in openings for first_is_white in (True, False)]
    played: list[PlayedGame | None] = [None] * len(games)
    unfinished = list(range(len(games)))
    while unfinished:
        num_unfinished = len(unfinished)
        for index in unfinished:
            end = games[index].end(max_plies)
            if end is not None:
                played[index] = games[index].finished(end)
        unfinished = [index for index in unfinished if played[index] is None]
        to_move = {player: [i for i in unfinished if games[i].is_first_to_move() is player] for player in (True, False)}
        for is_first, indices in to_move.items():
            if indices:
                player = first if is_first else second
                for index, answer in zip(
                    indices, player.choose([games[i].board for i in indices], [game_numbers[i] for i in indices]), strict=True
                ):
                    move = games[index].record_reply(answer)
                    if move is None:
                        played[index] = games[index].finished(End.FORFEIT)
                        continue
                    if not games[index].board.is_legal(move):
                        raise ValueError(f"{player.name} played {move.uci()} in {games[index].board.fen()}, which is not legal")
                    games[index].push(move)
        unfinished = [index for index in unfinished if played[index] is None]
        if on_games_done is not None and len(unfinished) < num_unfinished:
            on_games_done(len(games) - len(unfinished))
    return MatchResult(first=first.name, second=second.name, games=tuple(game for game in played if game is not None))
