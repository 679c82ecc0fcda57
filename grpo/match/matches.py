"""Matches between two players. Each opening is played with both colors (a pair), and all games advance together as a batch.

Scores are the first player's: a win is 1, a draw 0.5. A pair score is the mean of a pair's two scores. Adjudication gives some draws
(`UNDECIDED`) to the side that an engine finds clearly ahead.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import chess

from grpo.base.documents import Document
from grpo.board.draws import repetition_key
from grpo.engine.answers import EngineAnswer, EngineError
from grpo.engine.pool import EnginePool, Query
from grpo.match.forks import Tell, in_processes
from grpo.match.replies import Reply, ReplyCounts
from grpo.statistics.intervals import Estimate, paired_interval

if TYPE_CHECKING:
    from grpo.match.players import Player

_T = TypeVar("_T")

DEPTH: Final = 10
"""Plies that adjudication searches."""
CENTIPAWNS: Final = 250
"""A higher score (in 1/100 pawn) wins by adjudication."""


class End(StrEnum):
    CHECKMATE = "checkmate"
    STALEMATE = "stalemate"
    MATERIAL = "insufficient material"
    REPETITION = "threefold repetition"
    FIFTY_MOVES = "fifty moves"
    PLY_CAP = "ply cap"
    FORFEIT = "no legal move named"


UNDECIDED: Final = frozenset((End.REPETITION, End.FIFTY_MOVES, End.PLY_CAP))
"""Draws in which a side may have a winning position."""
_RESULTS: Final = {1.0: "1-0", 0.5: "1/2-1/2", 0.0: "0-1"}
_LOST_BY_MOVER: Final = frozenset((End.CHECKMATE, End.FORFEIT))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedGame:
    opening: str  # FEN.
    first_is_white: bool
    moves: tuple[str, ...]  # UCI.
    end: End
    score: float  # 1, 0.5 or 0.
    adjudicated: float | None = None  # None if not adjudicated, or if the engine failed.
    first_replies: ReplyCounts | None = None  # None if the player returned plain moves.
    second_replies: ReplyCounts | None = None

    def boards(self) -> Iterator[chess.Board]:
        """Yield the same board object before each move and at the end."""
        board = chess.Board(self.opening)
        yield board
        for move in self.moves:
            board.push(chess.Move.from_uci(move))
            yield board

    def white_and_black(self, first: _T, second: _T) -> tuple[_T, _T]:
        return (first, second) if self.first_is_white else (second, first)

    def white_result(self, first_score: float) -> str:
        return _RESULTS[first_score if self.first_is_white else 1 - first_score]


class MatchReport(Document):
    """Counts and scores are the first player's."""

    score: Estimate  # Without adjudication.
    pairs: tuple[int, int, int, int, int]
    """Pairs with score 0, 1/4, 1/2, 3/4 and 1."""
    wins: int
    draws: int
    losses: int
    ends: dict[End, int]
    num_openings: int
    answers: dict[str, ReplyCounts]  # `first` or `second` -> counts; only players that returned a `Reply`.
    adjudicated: Estimate | None = None
    num_failed: int = 0  # Games that the engine failed to adjudicate; draws in `adjudicated`.


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchResult:
    """Games 2i and 2i + 1 share an opening and differ in colors."""

    first: str
    second: str
    games: tuple[PlayedGame, ...]
    is_adjudicated: bool = False

    @property
    def num_openings(self) -> int:
        """Distinct openings; move numbers are ignored."""
        return len({" ".join(game.opening.split(" ")[:5]) for game in self.games})

    def pair_scores(self, *, adjudicated: bool = False) -> list[float]:
        assert self.is_adjudicated or not adjudicated
        scores = [game.adjudicated if adjudicated and game.adjudicated is not None else game.score for game in self.games]
        return [(white + black) / 2 for white, black in zip(scores[::2], scores[1::2], strict=True)]

    def interval(self, *, adjudicated: bool = False) -> Estimate:
        return paired_interval(self.pair_scores(adjudicated=adjudicated))

    def report(self) -> MatchReport:
        scores, ends = Counter(game.score for game in self.games), Counter(game.end for game in self.games)
        pairs = Counter(self.pair_scores())
        answers = {name: [counts for game in self.games if (counts := getattr(game, f"{name}_replies"))] for name in ("first", "second")}
        return MatchReport(
            score=self.interval(),
            pairs=(pairs[0.0], pairs[0.25], pairs[0.5], pairs[0.75], pairs[1.0]),
            wins=scores[1.0],
            draws=scores[0.5],
            losses=scores[0.0],
            ends={end: ends[end] for end in End},
            num_openings=self.num_openings,
            answers={name: sum(counts, ReplyCounts()) for name, counts in answers.items() if counts},
            adjudicated=self.interval(adjudicated=True) if self.is_adjudicated else None,
            num_failed=sum(game.end in UNDECIDED and game.adjudicated is None for game in self.games) if self.is_adjudicated else 0,
        )


def whole_match(parts: Sequence[MatchResult]) -> MatchResult:
    return replace(parts[0], games=tuple(game for part in parts for game in part.games))


class _Game:
    """Counts repetitions itself, because python-chess would search the game at every ply."""

    def __init__(self, players: "tuple[Player, Player]", number: int, opening: str, first_is_white: bool, max_plies: int) -> None:
        self.number = number
        self.opening = opening
        self.first_is_white = first_is_white
        self.board = chess.Board(opening)
        self._players = players
        self._max_plies = max_plies
        self._seen = Counter[Hashable]()
        self._replies: dict[bool, ReplyCounts] = {}
        self.end = self._end()

    def _is_first_to_move(self) -> bool:
        return (self.board.turn == chess.WHITE) == self.first_is_white

    def mover(self) -> "Player":
        first, second = self._players
        return first if self._is_first_to_move() else second

    def play(self, answer: chess.Move | Reply) -> None:
        if isinstance(answer, Reply):
            is_first = self._is_first_to_move()
            self._replies[is_first] = self._replies.get(is_first, ReplyCounts()) + answer.counts
            if answer.move is None:
                self.end = End.FORFEIT
                return
            answer = answer.move
        if not self.board.is_legal(answer):
            raise ValueError(f"{self.mover().name} played the illegal move {answer.uci()} in {self.board.fen()}")
        self.board.push(answer)
        if self.board.halfmove_clock == 0:  # After a capture or pawn move, no earlier position can return.
            self._seen.clear()
        self.end = self._end()

    def _end(self) -> End | None:
        """Count the position; None if the game goes on."""
        board, key = self.board, repetition_key(self.board)
        self._seen[key] += 1
        if not any(board.generate_legal_moves()):
            return End.CHECKMATE if board.is_check() else End.STALEMATE
        if board.is_insufficient_material():
            return End.MATERIAL
        if self._seen[key] >= 3:
            return End.REPETITION
        if board.halfmove_clock >= 100:
            return End.FIFTY_MOVES
        return End.PLY_CAP if len(board.move_stack) >= self._max_plies else None

    def finished(self) -> PlayedGame:
        assert self.end is not None
        return PlayedGame(
            opening=self.opening,
            first_is_white=self.first_is_white,
            moves=tuple(move.uci() for move in self.board.move_stack),
            end=self.end,
            score=0.5 if self.end not in _LOST_BY_MOVER else 0.0 if self._is_first_to_move() else 1.0,
            first_replies=self._replies.get(True),
            second_replies=self._replies.get(False),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairing:
    first: "Player"
    second: "Player"
    openings: Sequence[str] | Mapping[int, str]
    """FENs of distinct positions. For a part of a match: index in the complete match -> FEN; the index selects a game's random numbers."""


def play_match(
    first: "Player",
    second: "Player",
    openings: Sequence[str] | Mapping[int, str],
    *,
    max_plies: int,
    on_games_done: Tell | None = None,
    num_processes: int = 1,
) -> MatchResult:
    """Play one match, as `play_matches`."""
    pairing = Pairing(first=first, second=second, openings=openings)
    [result] = play_matches([pairing], max_plies=max_plies, on_games_done=on_games_done, num_processes=num_processes)
    return result


def play_matches(
    pairings: Sequence[Pairing], *, max_plies: int, on_games_done: Tell | None = None, num_processes: int = 1
) -> list[MatchResult]:
    """Play each opening of each match with both colors, in the order of the openings.

    `num_processes` does not change the games. Several processes play with copies of the players, so the players' random streams do not
    advance. Players on a GPU need 1 (`num_forks`).

    Raises ValueError for a player's illegal move. With several processes, raises ForkError for this or if a process dies.
    """
    # A board among 80 takes a policy half as long as among 20.
    num_parts = num_processes // math.gcd(num_processes, len(pairings))
    games = [list(_games(pairing, max_plies)) for pairing in pairings]
    shares: dict[int, list[tuple[int, int]]] = {}  # Process -> its games' matches and rows.
    for match, in_match in enumerate(games):
        for row in range(len(in_match)):
            part = row // 2 % num_parts  # Pairs stay together.
            shares.setdefault((match * num_parts + part) % num_processes, []).append((match, row))
    tasks = [partial(_play, [games[match][row] for match, row in share]) for share in shares.values()]
    played = in_processes(tasks, on_games_done or (lambda _: None))
    finished = {
        place: game for share, of_share in zip(shares.values(), played, strict=True) for place, game in zip(share, of_share, strict=True)
    }
    return [
        MatchResult(
            first=pairing.first.name,
            second=pairing.second.name,
            games=tuple(finished[match, row] for row in range(len(games[match]))),
        )
        for match, pairing in enumerate(pairings)
    ]


def _games(pairing: Pairing, max_plies: int) -> Iterator[_Game]:
    openings = pairing.openings
    for number, opening in openings.items() if isinstance(openings, Mapping) else enumerate(openings):
        for color in (0, 1):
            yield _Game((pairing.first, pairing.second), 2 * number + color, opening, color == 0, max_plies)


def _play(games: Sequence[_Game], tell: Tell) -> list[PlayedGame]:
    num_done = 0
    while True:
        unfinished = [game for game in games if game.end is None]
        if len(games) - len(unfinished) > num_done:
            num_done = len(games) - len(unfinished)
            tell(num_done)
        if not unfinished:
            return [game.finished() for game in games]
        # One batch has all boards on which a player is to move.
        by_mover: dict[int, list[_Game]] = {}
        for game in unfinished:
            by_mover.setdefault(id(game.mover()), []).append(game)
        for moving in by_mover.values():
            answers = moving[0].mover().choose([game.board for game in moving], [game.number for game in moving])
            for game, answer in zip(moving, answers, strict=True):
                game.play(answer)


def adjudicate(result: MatchResult, pool: EnginePool) -> MatchResult:
    """Adjudicate `UNDECIDED` games: a side wins if the engine finds it ahead by more than `CENTIPAWNS`, or with a forced mate.

    The search starts with a half-move clock of 0, because near the fiftieth move every position scores as a draw. `pool` must have MultiPV
    1. Raises EngineError if too many searches fail.
    """
    finals = {game: _final_board(game) for game in result.games if game.end in UNDECIDED}
    distinct = {board.fen(): board for board in finals.values()}  # Deterministic players often reach the same position.
    queries = [Query(fen=fen, limit=f"depth {DEPTH}", board=board) for fen, board in distinct.items()]
    answers = dict(zip(distinct, pool.search(queries), strict=True))
    scores = {game: _first_score(game, board, answers[board.fen()]) for game, board in finals.items()}
    return replace(result, games=tuple(replace(game, adjudicated=scores.get(game)) for game in result.games), is_adjudicated=True)


def _final_board(game: PlayedGame) -> chess.Board:
    *_, board = game.boards()
    board.halfmove_clock = 0
    return board.copy(stack=False)


def _first_score(game: PlayedGame, board: chess.Board, answer: EngineAnswer | EngineError) -> float | None:
    if isinstance(answer, EngineError):
        return None
    value, is_mate = answer.scores.get(answer.best_move) or next(iter(answer.scores.values()))
    if not is_mate and abs(value) <= CENTIPAWNS:
        return 0.5
    mover_is_first = (board.turn == chess.WHITE) == game.first_is_white
    return float((value > 0) == mover_is_first)
