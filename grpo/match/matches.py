"""Matches between two players: each opening is played with both colors, and all games advance in lock-step as a batch.

Adjudication is a second score, for undecided draws: the engine's evaluation of their final positions.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import chess

from grpo.base.documents import Document
from grpo.board.draws import repetition_key
from grpo.engine.answers import EngineAnswer, EngineError
from grpo.engine.pool import EnginePool, Query
from grpo.match.forks import Tell, in_processes, num_forks
from grpo.match.replies import Reply, ReplyCounts
from grpo.statistics.intervals import Estimate, paired_interval

if TYPE_CHECKING:  # It imports torch, and the pages of results read how games end without that.
    from grpo.match.players import Player

_T = TypeVar("_T")

DEPTH: Final = 10
CENTIPAWNS: Final = 250
"""A side that is ahead by more than this in a search of that depth has won an adjudicated game; an equal evaluation is a draw."""


class End(StrEnum):
    """How a game ended."""

    CHECKMATE = "checkmate"
    STALEMATE = "stalemate"
    MATERIAL = "insufficient material"
    REPETITION = "threefold repetition"
    FIFTY_MOVES = "fifty moves"
    PLY_CAP = "ply cap"
    FORFEIT = "no legal move named"
    """The player to move loses: a language model or an engine gave no answer with a legal move in all its attempts."""


UNDECIDED: Final = frozenset((End.REPETITION, End.FIFTY_MOVES, End.PLY_CAP))
"""Draws in which one side may have a winning position that it could not convert."""
_RESULTS: Final = {1.0: "1-0", 0.5: "1/2-1/2", 0.0: "0-1"}
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

    def boards(self) -> Iterator[chess.Board]:
        """Yield the board at the opening and after each move: one object, which the next step changes."""
        board = chess.Board(self.opening)
        yield board
        for move in self.moves:
            board.push(chess.Move.from_uci(move))
            yield board

    def white_and_black(self, first: _T, second: _T) -> tuple[_T, _T]:
        """Return what belongs to the first and to the second player in the order of their colors."""
        return (first, second) if self.first_is_white else (second, first)

    def white_result(self, first_score: float) -> str:
        """Return a score of the first player as PGN writes a result."""
        return _RESULTS[first_score if self.first_is_white else 1 - first_score]


class MatchReport(Document):
    """A match without its games, from the first player's side."""

    score: Estimate
    """Score as played."""
    pairs: tuple[int, int, int, int, int]
    """Number of pairs with a mean score of 0, 1/4, 1/2, 3/4 and 1, as played; `score` follows from these numbers (`paired_interval`)."""
    wins: int
    draws: int
    losses: int
    ends: dict[End, int]
    """Number of games for every way to end."""
    num_openings: int
    """Number of distinct openings."""
    answers: dict[str, ReplyCounts]
    """Player (`first`, `second`) -> answer counts, for players that can fail to name a legal move."""
    adjudicated: Estimate | None = None
    """Score of the same games as adjudicated; None if they were not."""
    num_failed: int = 0
    """Undecided games whose search failed: they stay draws in `adjudicated`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchResult:
    """All games of a match; games 2i and 2i + 1 share an opening and differ in colors."""

    first: str
    second: str
    games: tuple[PlayedGame, ...]
    is_adjudicated: bool = False

    @property
    def num_openings(self) -> int:
        """Number of distinct openings, move numbers ignored: the sample size if both players are deterministic."""
        return len({" ".join(game.opening.split(" ")[:5]) for game in self.games})

    def pair_scores(self, *, adjudicated: bool = False) -> list[float]:
        """Return the first player's mean score in each pair of games, as played or, after `adjudicate`, as adjudicated."""
        assert self.is_adjudicated or not adjudicated
        scores = [game.adjudicated if adjudicated and game.adjudicated is not None else game.score for game in self.games]
        return [(one + other) / 2 for one, other in zip(scores[::2], scores[1::2], strict=True)]

    def interval(self, *, adjudicated: bool = False) -> Estimate:
        """Return the first player's score with its 95 % interval, computed over pairs."""
        return paired_interval(self.pair_scores(adjudicated=adjudicated))

    def report(self) -> MatchReport:
        """Return what documents keep of the match."""
        scores, ends = Counter(game.score for game in self.games), Counter(game.end for game in self.games)
        pairs = Counter(self.pair_scores())
        answers = {name: [each for game in self.games if (each := getattr(game, f"{name}_replies"))] for name in ("first", "second")}
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
    """Return one match of parts that the same players have played, at least one."""
    return replace(parts[0], games=tuple(game for part in parts for game in part.games))


class _Game:
    """A game in progress with its own repetition count, because python-chess searches back through the game at every ply."""

    def __init__(self, opening: str, first_is_white: bool, max_plies: int) -> None:
        self.opening = opening
        self.first_is_white = first_is_white
        self.board = chess.Board(opening)
        self._max_plies = max_plies
        self._seen = Counter([repetition_key(self.board)])
        self._replies: dict[bool, ReplyCounts] = {}
        self.end = self._end()

    def is_first_to_move(self) -> bool:
        return (self.board.turn == chess.WHITE) == self.first_is_white

    def play(self, answer: chess.Move | Reply, player: str) -> None:
        if isinstance(answer, Reply):
            is_first = self.is_first_to_move()
            self._replies[is_first] = self._replies.get(is_first, ReplyCounts()) + answer.counts
            if answer.move is None:
                self.end = End.FORFEIT
                return
            answer = answer.move
        if not self.board.is_legal(answer):
            raise ValueError(f"{player} played {answer.uci()} in {self.board.fen()}, which is not legal")
        self.board.push(answer)
        if self.board.halfmove_clock == 0:
            self._seen.clear()
        self._seen[repetition_key(self.board)] += 1
        self.end = self._end()

    def _end(self) -> End | None:
        board = self.board
        if not any(board.generate_legal_moves()):
            return End.CHECKMATE if board.is_check() else End.STALEMATE
        if board.is_insufficient_material():
            return End.MATERIAL
        if self._seen[repetition_key(board)] >= 3:
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
            score=0.5 if self.end not in _LOST_BY_MOVER else 0.0 if self.is_first_to_move() else 1.0,
            first_replies=self._replies.get(True),
            second_replies=self._replies.get(False),
        )


def play_match(
    first: "Player",
    second: "Player",
    openings: Sequence[str] | Mapping[int, str],
    *,
    max_plies: int,
    on_games_done: Tell | None = None,
    num_processes: int = 1,
) -> MatchResult:
    """Play each opening with both colors and return the games, in the order of the openings.

    Args:
        first: The player whose score is reported.
        second: The opponent.
        openings: FENs of distinct positions. A part of a larger match gives index in that match -> FEN: players then use the same random
            numbers as in the larger match.
        max_plies: A game of this length, counted from its opening, is a draw.
        on_games_done: Called from time to time with the number of finished games.
        num_processes: How many share the openings; no game depends on it. The players of this process then stay as they were.

    Raises ValueError if a player's move is not legal; ForkError where processes share the openings.
    """
    numbered = openings if isinstance(openings, Mapping) else dict(enumerate(openings))
    games = [_Game(opening, first_is_white, max_plies) for opening in numbered.values() for first_is_white in (True, False)]
    game_numbers = [2 * number + color for number in numbered for color in (0, 1)]
    num_parts = max(1, min(num_forks(num_processes), len(openings)))
    rows = [[row for row in range(len(games)) if row // 2 % num_parts == part] for part in range(num_parts)]  # Pairs stay together.
    tasks = [partial(_play, first, second, [games[row] for row in part], [game_numbers[row] for row in part]) for part in rows]
    played = in_processes(tasks, on_games_done or (lambda _: None))
    in_order = dict(zip((row for part in rows for row in part), (game for part in played for game in part), strict=True))
    return MatchResult(first=first.name, second=second.name, games=tuple(in_order[row] for row in range(len(games))))


def _play(first: "Player", second: "Player", games: Sequence[_Game], numbers: Sequence[int], tell: Tell) -> list[PlayedGame]:
    """Play games to their ends, all in lock-step."""
    num_done, is_self_play = 0, first is second
    while True:
        unfinished = [index for index, game in enumerate(games) if game.end is None]
        if len(games) - len(unfinished) > num_done:
            num_done = len(games) - len(unfinished)
            tell(num_done)
        if not unfinished:
            return [game.finished() for game in games]
        of_first = [index for index in unfinished if is_self_play or games[index].is_first_to_move()]
        of_second = [index for index in unfinished if not is_self_play and not games[index].is_first_to_move()]
        for player, indices in ((first, of_first), (second, of_second)):
            answers = player.choose([games[i].board for i in indices], [numbers[i] for i in indices]) if indices else ()
            for index, answer in zip(indices, answers, strict=True):
                games[index].play(answer, player.name)


def adjudicate(result: MatchResult, pool: EnginePool) -> MatchResult:
    """Return the match with a second score, in which a side that is more than `CENTIPAWNS` better wins an undecided game.

    Undecided games are draws by repetition, by the fifty-move rule or by the ply cap; stalemate and insufficient material stay draws. The
    final position is searched with its half-move clock set to 0, because near the fiftieth move a search scores every position as a draw.
    A forced mate exceeds any number of centipawns. The scores as played are not changed.

    Args:
        result: The match as played.
        pool: Engines without MultiPV.

    Raises EngineError if several searches in a row fail; a game whose single search failed stays a draw and is counted.
    """
    finals = {game: _final_board(game) for game in result.games if game.end in UNDECIDED}
    distinct = {board.fen(): board for board in finals.values()}  # Deterministic players reach the same final position many times.
    queries = [Query(fen=fen, limit=f"depth {DEPTH}", board=board) for fen, board in distinct.items()]
    answers = dict(zip(distinct, pool.search(queries), strict=True))
    scores = {game: _first_score(game, board, answers[board.fen()]) for game, board in finals.items()}
    return replace(result, games=tuple(replace(game, adjudicated=scores.get(game)) for game in result.games), is_adjudicated=True)


def _final_board(game: PlayedGame) -> chess.Board:
    *_, board = game.boards()
    board.halfmove_clock = 0
    return board.copy(stack=False)


def _first_score(game: PlayedGame, board: chess.Board, answer: EngineAnswer | EngineError) -> float | None:
    """Return the first player's score, or None if the engine failed."""
    if isinstance(answer, EngineError):
        return None
    value, is_mate = answer.scores.get(answer.best_move) or next(iter(answer.scores.values()))
    if not is_mate and abs(value) <= CENTIPAWNS:
        return 0.5
    mover_is_first = (board.turn == chess.WHITE) == game.first_is_white
    return float((value > 0) == mover_is_first)
