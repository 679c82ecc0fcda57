"""UCI server: lets a chess program play a policy (https://www.chessprogramming.org/UCI).

The server computes moves at once. It holds a move until `stop` after `go infinite`, until `stop` or `ponderhit` after `go ponder`.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import chess

from grpo.board.material import material_lead
from grpo.uci.options import UciError, UciOptions

if TYPE_CHECKING:  # `search` imports torch, which would delay the answer to `uci`.
    from grpo.uci.search import MoveFinder

_COMMANDS: Final = frozenset(
    {"uci", "debug", "isready", "setoption", "register", "ucinewgame", "position", "go", "stop", "ponderhit", "quit"}
)
NO_MOVE: Final = "(none)"  # `bestmove` without a legal move, as Stockfish sends it.
RESIGNATION: Final = "0000"
"""The null move, sent as `bestmove` to resign or without a position."""


class UciEngine:
    def __init__(
        self, *, name: str, options: UciOptions, load: "Callable[[], MoveFinder]", seed: int, write: Callable[[str], None]
    ) -> None:
        """`load` is called once, at `isready` or the first search. `write` sends a line."""
        self._name = name
        self._defaults = self._options = options
        self._load = load
        self._seed = seed
        self._write = write
        self._board: chess.Board | None = chess.Board()
        self._num_games = 0
        self._held: str | None = None
        self._is_pondering = False  # Whether `ponderhit` also sends the held move.

    def handle(self, line: str) -> bool:
        """Answer a line; return False after `quit`. UCI demands to skip words before the first known command."""
        words = line.split()
        start = next((index for index, word in enumerate(words) if word in _COMMANDS), None)
        if start is None:
            return True
        arguments = words[start + 1 :]
        match words[start]:
            case "uci":
                for answer in (f"id name {self._name}", "id author the chess-grpo authors", *self._defaults.declarations(), "uciok"):
                    self._write(answer)
            case "isready":
                _ = self._finder  # Loads the policy.
                self._write("readyok")
            case "setoption":
                try:
                    self._options = self._options.with_option(arguments)
                except UciError as error:
                    self._write(f"info string {error}")
            case "ucinewgame":
                self._num_games += 1
            case "position":
                self._position(arguments)
            case "go":
                self._go(arguments)
            case "ponderhit" if self._is_pondering:
                self.send_held_move()
            case "stop" | "quit":
                self.send_held_move()
        return words[start] != "quit"

    def send_held_move(self) -> None:
        if self._held is not None:
            move, self._held, self._is_pondering = self._held, None, False
            self._write(f"bestmove {move}")

    def _position(self, words: Sequence[str]) -> None:
        try:
            self._board = read_position(words)
        except UciError as error:
            self._board = None  # A `go` must not answer for the previous position.
            self._write(f"info string {error}; there is no position now")

    def _go(self, words: Sequence[str]) -> None:
        self.send_held_move()  # A new `go` ends the last one, as `stop` does.
        self._held = self._search(frozenset(words[words.index("searchmoves") + 1 :] if "searchmoves" in words else ()))
        self._is_pondering = "ponder" in words and "infinite" not in words
        if "ponder" not in words and "infinite" not in words:
            self.send_held_move()

    def _search(self, search_moves: frozenset[str]) -> str:
        """Write the `info` lines and return the best move. Illegal `search_moves` are ignored; if none is legal, all moves are allowed."""
        board = self._board
        if board is None:
            self._write("info string no position: the last one was refused")
            return RESIGNATION
        legal = {move.uci() for move in board.legal_moves}
        if not legal:
            self._write(f"info depth 0 score {'mate 0' if board.is_check() else 'cp 0'}")
            return NO_MOVE
        result = self._finder.find(board, allowed=search_moves & legal, options=self._options, seed=self._seed, num_games=self._num_games)
        self._write(f"info string {result.remark}")
        for index, move in enumerate(result.shown, start=1):
            self._write(f"info depth 1 seldepth 1 multipv {index} score {score_after(board, move)} nodes 1 pv {move.uci()}")
        return RESIGNATION if result.best is None else result.best.uci()

    @cached_property
    def _finder(self) -> "MoveFinder":
        return self._load()


def serve(engine: UciEngine, received: Iterable[bytes]) -> None:
    for line in received:
        if not engine.handle(line.decode("utf-8", "replace")):
            break
    engine.send_held_move()


def read_position(words: Sequence[str]) -> chess.Board:
    """Return the board after the line `position WORDS`. Raises UciError for bad syntax, an impossible position or an illegal move.

    Impossible castling and en-passant rights are dropped, as chess programs expect.
    """
    start, _, moves = " ".join(words).partition(" moves ")
    kind, _, fen = start.removesuffix(" moves").partition(" ")
    if (kind, bool(fen)) not in (("startpos", False), ("fen", True)):
        raise UciError("position: write `position startpos` or `position fen FEN`, and then `moves ...`")
    try:
        board = chess.Board(fen or chess.STARTING_FEN)
    except ValueError as error:
        raise UciError(f"not a FEN: {str(error)!a:.60}") from None
    board.castling_rights = board.clean_castling_rights()
    if board.status() & chess.STATUS_INVALID_EP_SQUARE:
        board.ep_square = None
    if not board.is_valid():
        raise UciError(f"impossible position ({board.status().name}): {fen!a:.60}")
    for number, text in enumerate(moves.split(), start=1):
        # Comparing texts also refuses Chess960's castling (king takes rook).
        move = next((move for move in board.legal_moves if move.uci() == text), None)
        if move is None:
            raise UciError(f"move {number}, {text!a:.60}, is illegal in {board.fen()}")
        board.push(move)
    return board


def score_after(board: chess.Board, move: chess.Move) -> str:
    """Return a move's UCI score: `mate 1`, `cp 0` for a draw, otherwise the mover's lead in material after it (1/100 pawn).

    Chess programs demand a score, and a policy has no value of a position.
    """
    after = board.copy(stack=False)
    after.push(move)
    if after.is_checkmate():
        return "mate 1"
    if after.is_stalemate() or after.is_insufficient_material():
        return "cp 0"
    return f"cp {100 * material_lead(after, board.turn)}"
