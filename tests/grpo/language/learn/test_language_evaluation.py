"""A language model on held-out boards: what its answers are worth, one without a legal move being a loss; and the gate before GRPO."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from doubles import some_boards
from made_language import made_up_rows
from speakers import ScriptedSpeaker, naming

from grpo.board.phases import PHASES
from grpo.dataset.table import Split, board_table
from grpo.language.learn.evaluation import EvaluationBoards, evaluate_language
from grpo.language.learn.parse_rate_gate import ParseRate, UnreadableError, refuse_unreadable
from grpo.language.text.tasks import TextTask
from grpo.settings.language import LanguageConfig

# The stronger search's values are made up, the reward's are all 0.
ROWS = [row | {"values": [0.0] * len(row["moves"])} for row in made_up_rows(some_boards(40, max_plies=80), split=Split.HELDOUT)]
VALUES = {row["fen"]: dict(zip(row["moves"], row["strong_values"].tolist(), strict=True)) for row in ROWS}


def judged(rows: Sequence[dict[str, Any]] = ROWS, count: int = 30) -> EvaluationBoards:
    return EvaluationBoards.of_table(board_table(rows), config=LanguageConfig(num_heldout_boards=count))


def best_of(fen: str) -> str:
    return max(VALUES[fen], key=VALUES[fen].__getitem__)


def worst_of(fen: str) -> str:
    return min(VALUES[fen], key=VALUES[fen].__getitem__)


def test_the_first_heldout_boards_of_each_phase_are_judged_in_equal_parts_and_in_order() -> None:
    phases = [PHASES[0]] * 20 + [PHASES[1]] * 15 + [PHASES[2]] * 5
    trained = made_up_rows(some_boards(4, seed=1))
    found = judged([*trained, *(row | {"phase": phase.value} for row, phase in zip(ROWS, phases, strict=True))], 9)
    assert [board.fen() for board in found.boards] == [ROWS[place]["fen"] for place in (0, 1, 2, 20, 21, 22, 35, 36, 37)]
    assert found.phases.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    with pytest.raises(ValueError, match="no boards in its heldout split"):
        judged(trained)


def test_who_names_the_best_move_gives_nothing_away_and_who_names_none_all() -> None:
    boards = judged()
    tops = [max(VALUES[board.fen()].values()) for board in boards.boards]
    perfect = evaluate_language(ScriptedSpeaker(lambda fen, _: naming(best_of(fen))), boards)
    silent = evaluate_language(ScriptedSpeaker(lambda fen, _: "?"), boards)
    illegal = evaluate_language(ScriptedSpeaker(lambda fen, _: naming("a1a1")), boards)
    assert perfect.scores.regret_best.tolist() == perfect.scores.regret_sampled.tolist() == [0.0] * 30
    for nothing in (silent, illegal):
        assert nothing.scores.regret_best.tolist() == nothing.scores.regret_sampled.tolist() == pytest.approx(tops)
        assert nothing.scores.expected_value.tolist() == [0.0] * 30
        assert nothing.metrics()["heldout/legal_rate"] == 0
    assert (silent.metrics()["heldout/parse_rate"], illegal.metrics()["heldout/parse_rate"]) == (0, 1)
    assert (perfect.metrics()["heldout/parse_rate"], perfect.metrics()["heldout/legal_rate"]) == (1, 1)


def test_the_best_answer_gives_the_regret_of_the_best_move_and_the_drawn_ones_the_expected_value() -> None:
    def answer(fen: str, number: float | None) -> str:
        return naming(worst_of(fen)) if number is None else naming(best_of(fen)) if number < 0.5 else ""

    speaker = ScriptedSpeaker(answer)
    boards = judged()
    found = evaluate_language(speaker, boards)
    assert speaker.asked == [(None, 30), (1.0, 60)], "one question each, and no second one for those that failed"
    for row, board in enumerate(boards.boards):
        values = VALUES[board.fen()].values()
        assert found.scores.regret_best[row] == pytest.approx(max(values) - min(values))
        share = found.scores.expected_value[row] / max(values)
        assert share == pytest.approx(round(2 * share) / 2), "so many of two answers named the best move"
        assert found.scores.regret_sampled[row] == pytest.approx(max(values) - found.scores.expected_value[row])
    shares = found.scores.expected_value / np.array([max(VALUES[board.fen()].values()) for board in boards.boards])
    assert 0.35 < shares.mean() < 0.65
    assert len(np.unique(shares.round(2))) > 2, "boards draw by themselves"


def test_each_task_must_pass_the_gate_and_only_those_that_do_not_are_named() -> None:
    def refuse(*, move: float, environment: float, truncated: float = 0.0) -> None:
        rest = {"low": 0.7, "high": 0.9, "num": 50, "legal_rate": None, "truncated": truncated, "example": "e2e4 is good"}
        rates = {TextTask.MOVE: ParseRate(rate=move, **rest), TextTask.ENVIRONMENT: ParseRate(rate=environment, **rest)}
        refuse_unreadable(rates, LanguageConfig(min_parse_rate=0.8), num_steps=300)

    refuse(move=0.8, environment=0.8)
    with pytest.raises(UnreadableError, match=r"environment task: parse rate 0\.78") as refusal:
        refuse(move=0.82, environment=0.78)
    assert "move task" not in str(refusal.value)
    assert "max_answer_tokens" not in str(refusal.value)
    with pytest.raises(UnreadableError, match=r"or raise language\.max_answer_tokens = 144, which cut 75 % of the answers"):
        refuse(move=0.82, environment=0.2, truncated=0.75)
