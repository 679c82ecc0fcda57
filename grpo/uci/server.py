"""UCI server: answers the UCI protocol (https://www.chessprogramming.org/UCI) for a policy, so that chess programs can play it.

One thread is enough, because a search is one forward pass of a few milliseconds; all commands, also `isready` and `stop`, are answered
between searches. `go infinite` and `go ponder` compute their move at once and hold it back until they may send it. Every `go` gets exactly
one `bestmove`, in order.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Final

import chess

from grpo.uci.commands import GoCommand, PositionError, ascii_quoted, read_go, read_position
from grpo.uci.options import RANDOM_SEED, OptionError, UciOptions

if TYPE_CHECKING:  # Torch is imported with the policy, after `uci` was answered.
    from grpo.uci.search import MoveFinder

_COMMANDS: Final = frozenset(
    {"uci", "debug", "isready", "setoption", "register", "ucinewgame", "position", "go", "stop", "ponderhit", "quit"}
)
NO_MOVE: Final = "(none)"
"""The `bestmove` of a finished game, as Stockfish sends it."""
RESIGNATION: Final = "0000"
"""The `bestmove` of a player that resigns: the null move, which is never legal; UCI has no command for it."""
_LONGEST_LINE: Final = 1 << 20  # A game of 5,000 moves is 25 kB.
_PAWNS: Final = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9}


@dataclass(frozen=True, kw_only=True, slots=True)
class _PendingMove:
    """A move that was found but must not be sent yet."""

    best: str
    go: GoCommand


class UciEngine:
    """The engine's side of the UCI protocol: reads command lines, writes answer lines."""

    def __init__(
        self, *, name: str, options: UciOptions, load: "Callable[[], MoveFinder]", random_seed: int, write: Callable[[str], None]
    ) -> None:
        """Prepare the engine without loading the policy.

        Args:
            name: Name in the `id` line.
            options: The defaults.
            load: Loads the policy; called once, when the engine must be ready.
            random_seed: The seed to use if the option Seed is `RANDOM_SEED`.
            write: Sends a line to the chess program.
        """
        self._name = name
        self._defaults = options
        self._options = options
        self._load = load
        self._random_seed = random_seed
        self._write = write
        self._finder: MoveFinder | None = None
        self._board = chess.Board()
        self._num_games = 0
        self._is_debugging = False
        self._pending: _PendingMove | None = None

    def handle(self, line: str) -> bool:
        """Answer one line; words before the first known command are skipped, as the protocol requires.

        Returns:
            Whether to continue: False after `quit`.
        """
        words = line.split()
        known = next((index for index, word in enumerate(words) if word in _COMMANDS), None)
        if known is None:
            if words and self._is_debugging:
                self._write(f"info string no command in {ascii_quoted(line.strip())}")
            return True
        self._execute(words[known], words[known + 1 :])
        return words[known] != "quit"

    def close(self) -> None:
        """Send a `bestmove` that is still pending."""
        self._send_best_move()

    def _execute(self, command: str, words: Sequence[str]) -> None:
        match command:
            case "uci":
                self._introduce()
            case "debug":
                self._is_debugging = list(words[:1]) == ["on"]
            case "isready":
                self._loaded()
                self._write("readyok")
            case "setoption":
                self._setoption(words)
            case "ucinewgame":
                self._num_games += 1
            case "position":
                self._position(words)
            case "go":
                self._go(words)
            case "stop":
                self._send_best_move()
            case "ponderhit":
                self._ponderhit()

    def _introduce(self) -> None:
        for line in (f"id name {self._name}", "id author the chess-grpo authors", *self._defaults.declarations(), "uciok"):
            self._write(line)

    def _setoption(self, words: Sequence[str]) -> None:
        try:
            self._options = self._options.with_option(words)
        except OptionError as error:
            self._write(f"info string {error}")

    def _position(self, words: Sequence[str]) -> None:
        try:
            self._board = read_position(words)
        except PositionError as error:
            self._write(f"info string {error}; the previous position stays")

    def _go(self, words: Sequence[str]) -> None:
        self._send_best_move()  # A pending search ends now, as after `stop`.
        go = read_go(words)
        self._pending = _PendingMove(best=self._search(go), go=go)
        if not (go.is_infinite or go.is_pondering):
            self._send_best_move()

    def _ponderhit(self) -> None:
        if self._pending is None:
            return
        self._pending = replace(self._pending, go=replace(self._pending.go, is_pondering=False))
        if not self._pending.go.is_infinite:
            self._send_best_move()

    def _send_best_move(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._write(f"bestmove {pending.best}")

    def _search(self, go: GoCommand) -> str:
        """Write the `info` lines of the current board, and return the best move."""
        began = time.monotonic()
        board = self._board
        legal = {move.uci() for move in board.legal_moves}
        if not legal:
            self._write(f"info depth 0 score {'mate 0' if board.is_check() else 'cp 0'}")
            return NO_MOVE
        allowed = go.search_moves & legal
        if go.search_moves and not allowed:
            self._write("info string searchmoves has no legal move; all are considered")
        found = self._loaded().find(
            board,
            allowed=allowed,
            options=self._options,
            seed=self._random_seed if self._options.seed == RANDOM_SEED else self._options.seed,
            num_games=self._num_games,
        )
        for remark in found.remarks:
            self._write(f"info string {remark}")
        milliseconds = int(1000 * (time.monotonic() - began))
        for index, move in enumerate(found.shown, start=1):
            self._write(
                f"info depth 1 seldepth 1 multipv {index} score {score_after(board, move)} nodes 1 time {milliseconds} pv {move.uci()}"
            )
        return RESIGNATION if found.best is None else found.best.uci()

    def _loaded(self) -> "MoveFinder":
        if self._finder is None:
            self._finder = self._load()
        return self._finder


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
    balance = sum(pawns * (len(after.pieces(kind, board.turn)) - len(after.pieces(kind, not board.turn))) for kind, pawns in _PAWNS.items())
    return f"cp {100 * balance}"


def serve(engine: UciEngine, received: BinaryIO) -> None:
    """Answer all lines until `quit` or the end of the input; a pending `bestmove` is sent at the end."""
    for line in _lines(received):
        if not engine.handle(line):
            break
    engine.close()


def _lines(received: BinaryIO) -> Iterator[str]:
    """Yield the lines as text, also a last one without line end; drop lines that are too long."""
    is_rest = False
    while piece := received.readline(_LONGEST_LINE):
        is_end = piece.endswith(b"\n") or len(piece) < _LONGEST_LINE
        if is_end and not is_rest:
            yield piece.decode("utf-8", "replace")
        is_rest = not is_end
