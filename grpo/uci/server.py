"""UCI server: answers the UCI protocol (https://www.chessprogramming.org/UCI) for a policy, so that chess programs can play it.

One thread is enough, because a search is one forward pass of a few milliseconds; all commands, also `isready` and `stop`, are answered
between searches. `go infinite` and `go ponder` compute their move at once and hold it back until they may send it. Every `go` gets exactly
one `bestmove`, in order.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import chess

from grpo.board.material import material_lead
from grpo.uci.options import UciError, UciOptions

if TYPE_CHECKING:  # Torch is imported with the policy, after `uci` was answered.
    from grpo.uci.search import MoveFinder

_COMMANDS: Final = frozenset(
    {"uci", "debug", "isready", "setoption", "register", "ucinewgame", "position", "go", "stop", "ponderhit", "quit"}
)
NO_MOVE: Final = "(none)"
"""The `bestmove` of a finished game, as Stockfish sends it."""
RESIGNATION: Final = "0000"
"""The `bestmove` of a player that resigns or has no position: the null move, which is never legal; UCI has no command for either."""


class UciEngine:
    """The engine's side of the UCI protocol: reads command lines, writes answer lines."""

    def __init__(
        self, *, name: str, options: UciOptions, load: "Callable[[], MoveFinder]", seed: int, write: Callable[[str], None]
    ) -> None:
        """Take the name of the `id` line, the options' defaults, and what loads the policy: it is called once, at the latest possible time.

        `seed` is the root of sampled moves; `write` sends a line to the chess program.
        """
        self._name = name
        self._defaults = self._options = options
        self._load = load
        self._seed = seed
        self._write = write
        self._board: chess.Board | None = chess.Board()
        self._num_games = 0
        self._held: str | None = None
        """A move that was found but must not be sent before `stop`,"""
        self._is_pondering = False
        """or before `ponderhit` if this is set."""

    def handle(self, line: str) -> bool:
        """Answer one line, and return whether to continue; words before the first known command are skipped, as the protocol requires."""
        words = line.split()
        start = next((index for index, word in enumerate(words) if word in _COMMANDS), None)
        if start is None:
            return True
        rest = words[start + 1 :]
        match words[start]:
            case "uci":
                for answer in (f"id name {self._name}", "id author the chess-grpo authors", *self._defaults.declarations(), "uciok"):
                    self._write(answer)
            case "isready":
                _ = self._finder  # It is loaded now.
                self._write("readyok")
            case "setoption":
                try:
                    self._options = self._options.with_option(rest)
                except UciError as error:
                    self._write(f"info string {error}")
            case "ucinewgame":
                self._num_games += 1
            case "position":
                self._position(rest)
            case "go":
                self._go(rest)
            case "ponderhit" if self._is_pondering:
                self.send_held_move()
            case "stop" | "quit":
                self.send_held_move()
        return words[start] != "quit"

    def send_held_move(self) -> None:
        """Send the `bestmove` that is still owed, if there is one."""
        if self._held is not None:
            move, self._held, self._is_pondering = self._held, None, False
            self._write(f"bestmove {move}")

    def _position(self, words: Sequence[str]) -> None:
        try:
            self._board = read_position(words)
        except UciError as error:
            self._board = None  # A move for the position before would be played on another board.
            self._write(f"info string {error}; there is no position now")

    def _go(self, words: Sequence[str]) -> None:
        self.send_held_move()  # A pending search ends now, as after `stop`.
        self._held = self._search(frozenset(words[words.index("searchmoves") + 1 :] if "searchmoves" in words else ()))
        self._is_pondering = "ponder" in words and "infinite" not in words
        if "ponder" not in words and "infinite" not in words:
            self.send_held_move()

    def _search(self, search_moves: frozenset[str]) -> str:
        """Write the `info` lines of the current board, and return the best move; words that are no legal move restrict nothing."""
        board = self._board
        if board is None:
            self._write("info string no position: the last one was refused")
            return RESIGNATION
        legal = {move.uci() for move in board.legal_moves}
        if not legal:
            self._write(f"info depth 0 score {'mate 0' if board.is_check() else 'cp 0'}")
            return NO_MOVE
        found = self._finder.find(board, allowed=search_moves & legal, options=self._options, seed=self._seed, num_games=self._num_games)
        self._write(f"info string {found.remark}")
        for index, move in enumerate(found.shown, start=1):
            score = score_after(board, move)
            self._write(f"info depth 1 seldepth 1 multipv {index} score {score} nodes 1 pv {move.uci()}")
        return RESIGNATION if found.best is None else found.best.uci()

    @cached_property
    def _finder(self) -> "MoveFinder":
        return self._load()


def serve(engine: UciEngine, received: Iterable[bytes]) -> None:
    """Answer all lines until `quit` or the end of the input; a pending `bestmove` is sent at the end."""
    for line in received:
        if not engine.handle(line.decode("utf-8", "replace")):
            break
    engine.send_held_move()


def read_position(words: Sequence[str]) -> chess.Board:
    """Return the board, with its history, for the arguments of `position`.

    Castling and en-passant rights that cannot hold are dropped, as chess programs expect. Raises UciError for an invalid or impossible
    FEN, and for an illegal move; it names the first one.
    """
    given, _, moves = " ".join(words).partition(" moves ")
    kind, _, fen = given.removesuffix(" moves").partition(" ")
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
        # Also king-takes-rook, the castling of Chess960, is no move here.
        move = next((move for move in board.legal_moves if move.uci() == text), None)
        if move is None:
            raise UciError(f"move {number}, {text!a:.60}, is illegal in {board.fen()}")
        board.push(move)
    return board


def score_after(board: chess.Board, move: chess.Move) -> str:
    """Return a move's UCI score: `mate 1` for checkmate, else the material balance, because a policy estimates no value.

    The balance is from the mover's side, in centipawns: knight and bishop 300, rook 500, queen 900; an immediate draw is 0.
    """
    after = board.copy(stack=False)
    after.push(move)
    if after.is_checkmate():
        return "mate 1"
    if after.is_stalemate() or after.is_insufficient_material():
        return "cp 0"
    return f"cp {100 * material_lead(after, board.turn)}"
