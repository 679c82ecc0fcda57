"""Games between two players: paired openings, both colours, all boards in lock-step."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import chess

from grpo.play.players import Player
from grpo.play.replies import Reply, ReplyCounts
from grpo.statistics.intervals import ScoreInterval, paired_interval


class End(StrEnum):
    """How a game ended."""

    CHECKMATE = "checkmate"
    STALEMATE = "stalemate"
    MATERIAL = "insufficient material"
    REPETITION = "threefold repetition"
    FIFTY_MOVES = "fifty moves"
    PLY_CAP = "ply cap"
    FORFEIT = "no legal move named"
    """Lost by who was to move: a player who is asked in words gave no answer with a legal move, however often the rule asks."""


UNDECIDED: Final = frozenset((End.REPETITION, End.FIFTY_MOVES, End.PLY_CAP))
"""Draws that the board does not force: one side may stand to win, and not know how."""
_LOST_BY_MOVER: Final = frozenset((End.CHECKMATE, End.FORFEIT))
MOSTLY_UNDECIDED: Final = 0.5
"""Where more games than this share are undecided, their adjudicated score says more than the one as played."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedGame:
    """One game, seen from the first player of the match."""

    opening: str
    first_is_white: bool
    moves: tuple[str, ...]
    end: End
    score: float
    """Of the first player: 1, 0.5 or 0."""
    adjudicated: float | None = None
    """The same by the value of the final position; None where no engine was asked for it, or where it failed."""
    first_replies: ReplyCounts | None = None
    """Of the first player, where it is one who may fail to name a legal move; None for others."""
    second_replies: ReplyCounts | None = None
    """The same of the second player."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adjudication:
    """By which rule undecided games were given to the side that stands better."""

    depth: int
    """Of the search that values the final position."""
    centipawns: int
    """More than that for one side is a win."""
    num_failed: int
    """Games whose position the engine could not value; they are still draws."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchResult:
    """All games of a match; games 2i and 2i + 1 share an opening and differ in colours."""

    first: str
    second: str
    games: tuple[PlayedGame, ...]
    adjudication: Adjudication | None = None
    """None when games count as they were played, and in no other way."""

    @property
    def is_adjudicated(self) -> bool:
        """Whether there is a second score, by the value of the final positions."""
        return self.adjudication is not None

    @property
    def num_openings(self) -> int:
        """Distinct openings, whatever their move numbers: the sample size when both players always play the same."""
        return len({_without_move_number(game.opening) for game in self.games})

    @property
    def num_distinct_games(self) -> int:
        """Games that differ in opening, colours or moves."""
        return len({(_without_move_number(game.opening), game.first_is_white, game.moves) for game in self.games})

    def pair_scores(self, *, adjudicated: bool = False) -> list[float]:
        """Return the first player's mean score in each pair of games, as played or as adjudicated.

        Raises ValueError when there is no adjudication.
        """
        if adjudicated and not self.is_adjudicated:
            raise ValueError(f"the match of {self.first} and {self.second} was not adjudicated: call grpo.adjudication.adjudicate first")
        scores = [game.adjudicated if adjudicated and game.adjudicated is not None else game.score for game in self.games]
        return [(one + other) / 2 for one, other in zip(scores[::2], scores[1::2], strict=True)]

    def interval(self, *, adjudicated: bool = False) -> ScoreInterval:
        """Return the first player's score with its interval, by pairs."""
        return paired_interval(self.pair_scores(adjudicated=adjudicated))

    def joined(self, other: "MatchResult") -> "MatchResult":
        """Return the games of both as one match.

        Raises ValueError when players or adjudication differ.
        """
        one, two = self.adjudication, other.adjudication
        rules = [None if rule is None else (rule.depth, rule.centipawns) for rule in (one, two)]
        if (self.first, self.second) != (other.first, other.second) or rules[0] != rules[1]:
            raise ValueError(
                f"{self.first} against {self.second} and {other.first} against {other.second}, adjudicated by {rules}, are no one match"
            )
        if one is not None and two is not None:
            one = replace(one, num_failed=one.num_failed + two.num_failed)
        return replace(self, games=self.games + other.games, adjudication=one)

    def ends(self) -> dict[str, int]:
        """Return how many games ended in which way, all ways named."""
        counts = Counter(game.end for game in self.games)
        return {end.value: counts[end] for end in End}

    def share_undecided(self) -> float:
        """Return the share of games that were drawn although the board did not force it: by repetition, fifty moves or the ply cap.

        Raises ValueError when there is no game.
        """
        if not self.games:
            raise ValueError("no games, no share: play at least one opening")
        return sum(game.end in UNDECIDED for game in self.games) / len(self.games)

    def replies(self) -> dict[str, ReplyCounts]:
        """Return player -> what its answers were like, over all games, for those of the two who may fail to name a legal move.

        The players are called `first` and `second`.
        """
        of_games = {
            "first": [game.first_replies for game in self.games if game.first_replies is not None],
            "second": [game.second_replies for game in self.games if game.second_replies is not None],
        }
        return {player: sum(counts, ReplyCounts()) for player, counts in of_games.items() if counts}

    def wins_draws_losses(self) -> tuple[int, int, int]:
        """Return how many games the first player won, drew and lost, as played."""
        counts = Counter(game.score for game in self.games)
        return counts[1.0], counts[0.5], counts[0.0]


class _Board:
    """A game in progress, with its own count of repetitions: python-chess's is a search back through the game at each ply."""

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
        """Return the move of an answer, None when the game is given up, and note what it took."""
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
    """Return what makes two positions the same by the rules; written out, for a FEN's text takes 20 times as long."""
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
    first: Player,
    second: Player,
    openings: Sequence[str],
    *,
    max_plies: int,
    on_games_done: Callable[[int], None] | None = None,
    numbers: Sequence[int] | None = None,
) -> MatchResult:
    """Play each opening with both colours and return the games, in the order of the openings.

    Args:
        first: the player whose score it is.
        second: the opponent.
        openings: FENs of distinct positions.
        max_plies: a game that gets here, counted from its opening, is a draw.
        on_games_done: told now and then how many games are over.
        numbers: the openings' places in a larger match, of which these are a share; players draw in a game what they would draw there.

    Raises ValueError when a player's move is not legal.
    """
    places = range(len(openings)) if numbers is None else numbers
    drawn_as = [2 * place + colour for place in places for colour in (0, 1)]
    games = [_Board(opening, first_is_white) for opening in openings for first_is_white in (True, False)]
    played: list[PlayedGame | None] = [None] * len(games)
    open_games = list(range(len(games)))
    while open_games:
        num_open = len(open_games)
        for index in open_games:
            end = games[index].end(max_plies)
            if end is not None:
                played[index] = games[index].finished(end)
        open_games = [index for index in open_games if played[index] is None]
        to_move = {player: [i for i in open_games if games[i].is_first_to_move() is player] for player in (True, False)}
        for is_first, indices in to_move.items():
            if indices:
                player = first if is_first else second
                for index, answer in zip(
                    indices, player.choose([games[i].board for i in indices], [drawn_as[i] for i in indices]), strict=True
                ):
                    move = games[index].record_reply(answer)
                    if move is None:
                        played[index] = games[index].finished(End.FORFEIT)
                        continue
                    if not games[index].board.is_legal(move):
                        raise ValueError(f"{player.name} played {move.uci()} in {games[index].board.fen()}, which is not legal")
                    games[index].push(move)
        open_games = [index for index in open_games if played[index] is None]
        if on_games_done is not None and len(open_games) < num_open:
            on_games_done(len(games) - len(open_games))
    return MatchResult(first=first.name, second=second.name, games=tuple(game for game in played if game is not None))
