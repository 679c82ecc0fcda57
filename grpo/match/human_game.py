"""A game of a person against a policy: legal moves in any notation, take-back, resignation, hints, and its PGN."""

import difflib
from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import chess
import chess.pgn

from grpo.base.errors import PlainError

if TYPE_CHECKING:
    from grpo.match.annotations import MoveProbabilities

NUM_HINTS: Final = 5
_NUM_NEAREST: Final = 6
_COLORS: Final = {chess.WHITE: "white", chess.BLACK: "black"}


class MoveError(PlainError, ValueError):
    """A text or an action that is not possible now; the message names what is."""


class HumanGame:
    """The game so far. The opponent answers within each call, so between two calls the person is to move or the game is over."""

    def __init__(
        self,
        choose: Callable[[chess.Board], chess.Move | None],
        *,
        opponent: str,
        person_is_white: bool,
        fen: str = chess.STARTING_FEN,
        probabilities: "MoveProbabilities | None" = None,
    ) -> None:
        """Set up the position, and let the opponent move if it is its turn.

        Args:
            choose: Returns the opponent's move, or None to resign.
            opponent: Its name.
            person_is_white: Whether the person has White.
            fen: Start of the game.
            probabilities: Of the opponent's policy, if it has any.

        Raises MoveError if the position is not legal or has no move.
        """
        try:
            self.board = chess.Board(fen)
        except ValueError as error:
            raise MoveError(f"{fen!r} is not a FEN: {error}") from None
        if not self.board.is_valid():
            faults = str(self.board.status().name).lower().replace("_", " ").replace("|", ", ")
            raise MoveError(f"{fen!r} is not a legal position: {faults}")
        if self.board.is_game_over():
            raise MoveError(f"{fen!r}: the game is over there; give a position with a move")
        self.opponent = opponent
        self.person_is_white = person_is_white
        self._choose, self._probabilities = choose, probabilities
        self._resigned: chess.Color | None = None
        self._answer()

    @property
    def end(self) -> str:
        """How the game ended; empty while it goes on."""
        if self._resigned is not None:
            return f"{_COLORS[self._resigned]} resigned"
        board = self.board
        if (outcome := board.outcome()) is not None:
            return outcome.termination.name.lower().replace("_", " ")
        if board.is_repetition(3):
            return "threefold repetition"
        return "fifty moves" if board.is_fifty_moves() else ""

    @property
    def result(self) -> str:
        """The result as PGN writes it; `*` while the game goes on."""
        if not self.end:
            return "*"
        if self._resigned is not None:
            return "0-1" if self._resigned == chess.WHITE else "1-0"
        return self.board.result() if self.board.is_game_over() else "1/2-1/2"

    def parse(self, text: str) -> chess.Move:
        """Return the legal move that a text names in SAN or UCI.

        Raises MoveError with the nearest legal moves.
        """
        self._refuse_if_over()
        board = self.board
        try:
            return board.parse_san(text)
        except chess.AmbiguousMoveError:
            raise MoveError(f"{text} can be several moves: {self._alike(text)}") from None
        except ValueError:
            pass
        try:
            return board.parse_uci(text.lower())
        except ValueError:
            raise MoveError(f"{text} is not a legal move{' (you are in check)' * board.is_check()}; {self._nearest(text)}") from None

    def play(self, move: chess.Move) -> None:
        """Play a legal move, and the opponent's answer. Raises MoveError if the move is not legal."""
        self._refuse_if_over()
        if not self.board.is_legal(move):
            raise MoveError(f"{move.uci()} is not a legal move; {self._nearest(move.uci())}")
        self.board.push(move)
        self._answer()

    def undo(self) -> None:
        """Take back the person's last move and the answer. Raises MoveError if there is none, or the game is over."""
        self._refuse_if_over()
        if len(self.board.move_stack) < 2:
            raise MoveError("there is no move of yours to take back")
        self.board.pop()
        self.board.pop()

    def resign(self) -> None:
        """End the game as lost by the person. Raises MoveError if it is over."""
        self._refuse_if_over()
        self._resigned = self.person_is_white

    def hints(self) -> list[tuple[str, float]]:
        """Return the policy's most probable moves for the person, as SAN with probability.

        Raises MoveError if the policy has no probabilities, or the game is over.
        """
        self._refuse_if_over()
        found = self._ranked(self.board)
        if not found:
            raise MoveError(f"{self.opponent} has no probabilities of moves, so there is no hint")
        return found

    def answer_probabilities(self) -> list[tuple[str, float]]:
        """Return the policy's most probable moves where it moved last, as SAN with probability; empty if it has none."""
        if not self.board.move_stack or self.board.turn != self.person_is_white:
            return []
        before = self.board.copy()
        before.pop()
        return self._ranked(before)

    def sans(self) -> list[str]:
        """Return all moves so far in SAN."""
        board = self.board.root()
        return [board.san_and_push(move) for move in self.board.move_stack]

    def pgn(self, *, person: str, played_on: date) -> str:
        """Return the game as PGN."""
        game = chess.pgn.Game.from_board(self.board)
        names = (person, self.opponent) if self.person_is_white else (self.opponent, person)
        game.headers.update(Event="casual game", Site="chess-grpo", Date=f"{played_on:%Y.%m.%d}", Round="-", White=names[0], Black=names[1])
        game.headers["Result"] = self.result
        if self.end:
            game.headers["Termination"] = self.end
        return f"{game.accept(chess.pgn.StringExporter())}\n"

    def facts(self) -> dict[str, Any]:
        """Return what a page shows of the game, as plain data."""
        root, is_over = self.board.root(), bool(self.end)
        return {
            "opponent": self.opponent,
            "placement": self.board.board_fen(),
            "isPersonWhite": self.person_is_white,
            "isWhiteToMove": self.board.turn == chess.WHITE,
            "isCheck": self.board.is_check(),
            "last": self.board.peek().uci() if self.board.move_stack else "",
            "sans": self.sans(),
            "startNumber": root.fullmove_number,
            "startsWhite": root.turn == chess.WHITE,
            "legal": [] if is_over else [move.uci() for move in self.board.legal_moves],
            "result": self.result,
            "end": self.end,
            "answer": self.answer_probabilities(),
        }

    def _answer(self) -> None:
        if self.board.turn != self.person_is_white and not self.end:
            if (move := self._choose(self.board)) is None:
                self._resigned = self.board.turn
            else:
                self.board.push(move)

    def _ranked(self, board: chess.Board) -> list[tuple[str, float]]:
        found = None if self._probabilities is None else self._probabilities([board])
        if found is None:
            return []
        ranked = sorted(found[0].items(), key=lambda item: -item[1])[:NUM_HINTS]
        return [(board.san(chess.Move.from_uci(move)), probability) for move, probability in ranked]

    def _refuse_if_over(self) -> None:
        if self.end:
            raise MoveError(f"the game is over: {self.result}, {self.end}")

    def _nearest(self, text: str) -> str:
        """Return the legal moves nearest to a text: between its squares, of its piece, from or to its square, or of like spelling."""
        moves = {move.uci(): self.board.san(move) for move in self.board.legal_moves}
        start, end = text[:2].lower(), text[-2:].lower()
        rules: tuple[Callable[[str, str], bool], ...] = (
            lambda uci, _: len(text) == 4 and uci.startswith(text.lower()),
            lambda _, san: text[:1] in {"N", "B", "R", "Q", "K"} and san[0] == text[0],
            lambda uci, _: uci.startswith(start),
            lambda uci, _: uci[2:4] == end,
            lambda *_: True,
        )
        fitting = next(found for rule in rules if (found := [san for uci, san in moves.items() if rule(uci, san)]))
        return f"near it are {_listed(difflib.get_close_matches(text, fitting, n=len(fitting), cutoff=0))}"

    def _alike(self, text: str) -> str:
        wanted = text[0] + text[-2:]
        return _listed([san for san in map(self.board.san, self.board.legal_moves) if san[0] + san.rstrip("+#")[-2:] == wanted])


def _listed(sans: Sequence[str]) -> str:
    shown = list(dict.fromkeys(sans))[:_NUM_NEAREST]
    return ", ".join(shown) + (", ..." if len(set(sans)) > len(shown) else "")
