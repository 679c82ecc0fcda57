"""A game of a person against a policy."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, Final

import chess
import chess.pgn

from grpo.base.errors import PlainError

_NUM_SHOWN: Final = 5


class MoveError(PlainError, ValueError):
    """An impossible position, move or action."""


class HumanGame:
    """Between calls the person is to move, or the game is over."""

    def __init__(
        self,
        choose: Callable[[chess.Board], chess.Move | None],
        *,
        opponent: str,
        about: str = "",
        person_is_white: bool,
        fen: str = chess.STARTING_FEN,
        probabilities: Callable[[Sequence[chess.Board]], Sequence[Mapping[str, float]] | None] | None = None,
    ) -> None:
        """Set up the position `fen`. Raises MoveError if the position is illegal or its game is over.

        `choose` returns the opponent's move; None resigns. `probabilities` returns each board's UCI move -> probability; None if unknown.
        `about`: the page's text about the opponent.
        """
        try:
            self.board = chess.Board(fen)
        except ValueError as error:
            raise MoveError(f"{fen!r} is not a FEN: {error}") from None
        if not self.board.is_valid():
            raise MoveError(f"{fen!r} is illegal ({self.board.status().name})")
        self.opponent, self.about = opponent, about
        self.person_is_white = person_is_white
        self._choose, self._probabilities = choose, probabilities
        self._resigned: chess.Color | None = None
        if self.end:
            raise MoveError(f"{fen!r} is the end of a game ({self.end})")
        self._answer()

    @property
    def end(self) -> str:
        """Reason why the game ended; "" during the game."""
        if self._resigned is not None:
            return f"{chess.COLOR_NAMES[self._resigned]} resigned"
        if (outcome := self.board.outcome()) is not None:
            return outcome.termination.name.lower().replace("_", " ")
        return "threefold repetition" if self.board.is_repetition(3) else "fifty moves" if self.board.is_fifty_moves() else ""

    @property
    def result(self) -> str:
        """PGN result; `*` during the game."""
        if self._resigned is not None:
            return "0-1" if self._resigned == chess.WHITE else "1-0"
        return "1/2-1/2" if self.end and not self.board.is_game_over() else self.board.result()

    @property
    def actions(self) -> list[str]:
        is_possible = {"undo": len(self.board.move_stack) > 1, "resign": True, "hint": bool(self.hints())}
        return [] if self.end else [action for action in is_possible if is_possible[action]]

    def parse(self, text: str) -> chess.Move:
        """Return the legal move that `text` names in SAN or UCI. Raises MoveError."""
        self._refuse_if_over()
        for parse, move in ((self.board.parse_san, text), (self.board.parse_uci, text.lower())):
            try:
                parsed = parse(move)
            except ValueError:
                continue
            if parsed:  # "--" gives a null move, which is false.
                return parsed
        legal = [self.board.san(move) for move in self.board.legal_moves]
        near = difflib.get_close_matches(text, legal, n=_NUM_SHOWN, cutoff=0)
        raise MoveError(f"{text} names no single legal move{' (you are in check)' * self.board.is_check()}. Nearest: {', '.join(near)}")

    def play(self, text: str) -> None:
        """Play the person's move and the opponent's answer. Raises MoveError."""
        self.board.push(self.parse(text))
        self._answer()

    def undo(self) -> None:
        """Take back the person's last move and the answer. Raises MoveError."""
        self._refuse_if_over()
        if "undo" not in self.actions:
            raise MoveError("there is no move of yours to take back")
        self.board.pop()
        self.board.pop()

    def resign(self) -> None:
        """Raises MoveError."""
        self._refuse_if_over()
        self._resigned = self.person_is_white

    def hints(self, num_plies_back: int = 0) -> list[tuple[str, float]]:
        """Return (SAN, probability) of the five most probable moves in the position `num_plies_back` plies ago; empty if unknown."""
        board = self.board.copy()
        for _ in range(num_plies_back):
            board.pop()
        by_board = None if self._probabilities is None or not any(board.legal_moves) else self._probabilities([board])
        ranked = [] if by_board is None else sorted(by_board[0].items(), key=lambda item: -item[1])[:_NUM_SHOWN]
        return [(board.san(chess.Move.from_uci(move)), probability) for move, probability in ranked]

    def sans(self) -> list[str]:
        board = self.board.root()
        return [board.san_and_push(move) for move in self.board.move_stack]

    def pgn(self, *, person: str, played_on: date) -> str:
        game = chess.pgn.Game.from_board(self.board)
        white, black = (person, self.opponent) if self.person_is_white else (self.opponent, person)
        game.headers.update(Event="casual game", Site="chess-grpo", Date=f"{played_on:%Y.%m.%d}", Round="-", White=white, Black=black)
        game.headers.update(Result=self.result, Termination=self.end)
        return f"{game.accept(chess.pgn.StringExporter())}\n"

    def facts(self) -> dict[str, Any]:
        """Return the data of `play.html`."""
        is_answered = self.board.move_stack and self.board.turn == self.person_is_white
        return {
            "opponent": self.opponent,
            "about": self.about,
            "actions": self.actions,
            "placement": self.board.board_fen(),
            "isPersonWhite": self.person_is_white,
            "isCheck": self.board.is_check(),
            "last": self.board.peek().uci() if self.board.move_stack else "",
            "sans": self.sans(),
            "start": self.board.root().fen(),
            "legal": [] if self.end else [move.uci() for move in self.board.legal_moves],
            "result": self.result,
            "end": self.end,
            "answer": self.hints(1) if is_answered else [],
            "hints": [],  # `PlayServer.act` adds hints on request.
        }

    def _answer(self) -> None:
        if self.board.turn != self.person_is_white and not self.end:
            if (move := self._choose(self.board)) is None:
                self._resigned = self.board.turn
            else:
                self.board.push(move)

    def _refuse_if_over(self) -> None:
        if self.end:
            raise MoveError(f"the game is over: {self.result}, {self.end}")
