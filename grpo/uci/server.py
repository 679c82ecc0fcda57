"""A policy as a UCI engine (https://www.chessprogramming.org/UCI), which any chess program can play with.

One thread is enough: a search is one forward pass of a few milliseconds, so every command, `isready` and `stop` too, is answered between
two of them. `go infinite` and `go ponder` find their move at once and keep it until they may tell it. Every `go` gets exactly one
`bestmove`, whatever comes in between, and in order.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Final

import chess

from grpo.uci.commands import GoCommand, PositionError, ascii_quoted, read_go, read_position
from grpo.uci.options import CHANCE_SEED, OptionError, UciOptions

if TYPE_CHECKING:  # Torch comes with the policy, when it is loaded: `uci` is answered before.
    from grpo.uci.search import MoveFinder

# To register there is nothing.
_COMMANDS: Final = frozenset(
    {"uci", "debug", "isready", "setoption", "register", "ucinewgame", "position", "go", "stop", "ponderhit", "quit"}
)
NO_MOVE: Final = "(none)"
"""The best move where there is none: what Stockfish says, and chess programs know."""
GIVEN_UP: Final = "0000"
"""The best move of who gives the game up, for which the protocol has no word: its null move, which is legal nowhere."""
_LONGEST_LINE: Final = 1 << 20  # A game of 5,000 moves is 25 kB.
_PAWNS: Final = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Waiting:
    """A search that has its move and may not tell it yet."""

    best: str
    go: GoCommand


class UciEngine:
    """The engine's side of the protocol: takes lines, writes lines."""

    def __init__(
        self, *, name: str, options: UciOptions, load: "Callable[[], MoveFinder]", chance_seed: int, write: Callable[[str], None]
    ) -> None:
        """Prepare the engine without loading anything.

        Args:
            name: of the `id` line.
            options: the defaults.
            load: gives what finds the moves; called once, when the engine must be ready.
            chance_seed: what the seed `CHANCE_SEED` stands for.
            write: takes a line for the chess program.
        """
        self._name = name
        self._defaults = options
        self._options = options
        self._load = load
        self._chance_seed = chance_seed
        self._write = write
        self._finder: MoveFinder | None = None
        self._board = chess.Board()
        self._num_games = 0
        self._is_debugging = False
        self._waiting: _Waiting | None = None

    def handle(self, line: str) -> bool:
        """Answer one line; words before the first command are skipped, as the protocol wants it.

        Returns:
            Whether to go on: False after `quit`.
        """
        words = line.split()
        known = next((index for index, word in enumerate(words) if word in _COMMANDS), None)
        if known is None:
            if words and self._is_debugging:
                self._write(f"info string no command in {ascii_quoted(line.strip())}")
            return True
        self._obey(words[known], words[known + 1 :])
        return words[known] != "quit"

    def close(self) -> None:
        """Tell a best move that is still owed."""
        self._tell()

    def _obey(self, command: str, words: Sequence[str]) -> None:
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
                self._tell()
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
            self._write(f"info string {error}; the position before is kept")

    def _go(self, words: Sequence[str]) -> None:
        self._tell()  # A search that still waits ends now, as by `stop`: its best move comes first.
        go = read_go(words)
        self._waiting = _Waiting(best=self._search(go), go=go)
        if not (go.is_infinite or go.is_pondering):
            self._tell()

    def _ponderhit(self) -> None:
        if self._waiting is None:
            return
        self._waiting = replace(self._waiting, go=replace(self._waiting.go, is_pondering=False))
        if not self._waiting.go.is_infinite:
            self._tell()

    def _tell(self) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._write(f"bestmove {waiting.best}")

    def _search(self, go: GoCommand) -> str:
        """Write what was found about the board, and return the best move."""
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
            seed=self._chance_seed if self._options.seed == CHANCE_SEED else self._options.seed,
            num_games=self._num_games,
        )
        for remark in found.remarks:
            self._write(f"info string {remark}")
        milliseconds = int(1000 * (time.monotonic() - began))
        for index, move in enumerate(found.shown, start=1):
            self._write(
                f"info depth 1 seldepth 1 multipv {index} score {score_after(board, move)} nodes 1 time {milliseconds} pv {move.uci()}"
            )
        return GIVEN_UP if found.best is None else found.best.uci()

    def _loaded(self) -> "MoveFinder":
        if self._finder is None:
            self._finder = self._load()
        return self._finder


def score_after(board: chess.Board, move: chess.Move) -> str:
    """Return a move's UCI score: a policy has no opinion of who wins, so mate is `mate 1` and all else counts the men it leaves.

    Counted from the mover's side, in hundredths of a pawn: knight and bishop 3, rook 5, queen 9; 0 for a draw at once.
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
    """Answer all lines until `quit` or the end of what is received; best moves that are owed are told before the end."""
    for line in _lines(received):
        if not engine.handle(line):
            break
    engine.close()


def _lines(received: BinaryIO) -> Iterator[str]:
    """Give the lines as text, the last also without its end; a line too long to be one is dropped."""
    is_rest = False
    while piece := received.readline(_LONGEST_LINE):
        is_end = piece.endswith(b"\n") or len(piece) < _LONGEST_LINE
        if is_end and not is_rest:
            yield piece.decode("utf-8", "replace")
        is_rest = not is_end
