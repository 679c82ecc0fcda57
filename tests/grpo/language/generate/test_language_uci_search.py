"""A language model as a UCI engine: the move that it names, or the null move when the rule lets it be asked no more."""

import chess
import pytest
from speakers import Answer, ScriptedSpeaker, naming

from grpo.language.generate.player import LanguageMoveFinder
from grpo.uci.options import UciOptions
from grpo.uci.server import RESIGNATION, UciEngine


def drawn_move(fen: str, number: float | None) -> str:
    """Return a legal move by the number drawn; as the best answer the first."""
    legal = sorted(move.uci() for move in chess.Board(fen).legal_moves)
    return naming(legal[int((number or 0) * len(legal))])


def said(answer: Answer, *commands: str, max_questions: int = 3) -> list[str]:
    """Return all lines of an engine that is told these commands."""
    lines: list[str] = []
    speaker = ScriptedSpeaker(answer, max_questions=max_questions)
    options = UciOptions(temperature=0.0, has_lines=False)
    engine = UciEngine(name="x", options=options, load=lambda: LanguageMoveFinder(speaker), seed=7, write=lines.append)
    assert all(engine.handle(command) for command in commands)
    return lines


def best_moves(lines: list[str]) -> list[str]:
    """Return the moves told."""
    return [line.removeprefix("bestmove ") for line in lines if line.startswith("bestmove ")]


@pytest.mark.parametrize("max_questions", [1, 4])
def test_when_it_may_be_asked_no_more_it_says_so_and_tells_the_null_move(max_questions: int) -> None:
    lines = said(
        lambda fen, _: naming("e2e5"), "position startpos", "go", "position startpos moves e2e4", "go", max_questions=max_questions
    )
    assert RESIGNATION == "0000"
    assert best_moves(lines) == ["0000", "0000"], "one for each go"
    remark = f"info string language model: {max_questions} answers, 0 unreadable, {max_questions} illegal: no legal move, so"
    assert sum(line.startswith(remark) for line in lines) == 2
    assert not any(" pv " in line for line in lines)


def test_asked_twice_about_a_board_it_draws_the_same_and_in_another_game_another_move() -> None:
    warm = "setoption name Temperature value 1"
    lines = said(drawn_move, warm, "position startpos", "go", "go", *["ucinewgame", "go"] * 8)
    first, again, *others = best_moves(lines)
    assert first == again
    assert len({first, *others}) > 3
