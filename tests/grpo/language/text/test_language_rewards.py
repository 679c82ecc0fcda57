"""Graded rewards: worked by hand, in their ranges on any text, greatest for the target, and not to be had by tricks."""

import math

import chess
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_language import ALPHABET, TERMINAL_FENS, language_table, made_up_rows

from grpo.dataset.table import Split, board_table
from grpo.engine.move_values import LOGISTIC_SLOPE
from grpo.language.text.examples import EnvironmentExample, Example, LanguageBoards, environment_example, move_example
from grpo.language.text.rewards import CHESS, MALFORMED, PARSING, STRUCTURE, grade, win_probability
from grpo.language.text.tasks import TextTask, write_environment_answer
from grpo.settings.language import LanguageConfig

MOST = {"structure": STRUCTURE[1], "parsing": PARSING[1], **CHESS}

# Worths 1, 0.5, 0.25, 0.75, 0, 0.5, 0.125: the best five sum to 3.
VALUES = {"d2d4": 0.9, "e2e4": 0.5, "g1f3": 0.3, "c2c4": 0.7, "h2h4": 0.1, "b2b3": 0.5, "a2a3": 0.2}
HAND = move_example(
    {
        "fen": chess.STARTING_FEN,
        "moves": list(VALUES),
        "values": list(VALUES.values()),
        "centipawns": [100, 0, -100, 50, None, 0, -200],
        "mate_in": [None, None, None, None, -2, None, None],
    },
)
KNIGHT = environment_example(chess.Board(), "g1f3", num_history_moves=10)


def some_examples() -> list[Example]:
    """Return examples of both tasks, with mates, draws, illegal moves, promotions and boards with few moves among them."""
    rng = np.random.default_rng(0)
    few = board_table(made_up_rows([chess.Board(fen) for fen in (*TERMINAL_FENS, "7k/8/8/8/8/8/8/K7 w - - 0 1")]))
    config = LanguageConfig()
    examples = []
    for table in (language_table(12), few):
        source = LanguageBoards(table, Split.TRAIN, config)
        for index in range(len(source)):
            examples += [source.example(index, task, rng=rng) for task in (TextTask.MOVE, TextTask.ENVIRONMENT, TextTask.ENVIRONMENT)]
    return examples


EXAMPLES = some_examples()
OUTCOMES = [example for example in EXAMPLES if isinstance(example, EnvironmentExample)]


def part(example: Example, text: str, name: str) -> float:
    return grade(example, text).parts[name] / MOST[name]


def test_a_choice_worked_by_hand() -> None:
    text = " e2e4 h2h5 g1f3 e2e4 h2h4    E: 0.00 1.00 -1.00 9.00 x    B: c2c4"
    grades = grade(HAND, text)
    chance = 1 / (1 + math.exp(LOGISTIC_SLOPE * 100))
    assert win_probability(-1) == pytest.approx(chance)
    assert dict(grades.parts) == pytest.approx(
        {
            "structure": 1,
            # Ten of eleven fields.
            "parsing": 0.1 + 0.7 * 9 / 10,
            # e2e4 and g1f3 once each, h2h4 is the worst, h2h5 illegal: (0.5 + 0.25) of 1 + 0.75 + 0.5 + 0.5 + 0.25.
            "move_quality": 0.75 / 3,
            # Right for e2e4 and g1f3; the illegal, the repeated and the one without a number have nothing.
            "evaluation": 0.5 * 2 / 5,
            "best_move": 2 * 0.75,
        }
    )
    assert grades.is_legal_best
    assert grades.total() == pytest.approx(1.73 + 0.25 + 0.2 + 1.5)
    assert grades.total(0.0) == pytest.approx(1.73)
    assert grades.total(0.5) == pytest.approx(1.73 + 0.975)


def test_an_evaluation_worked_by_hand() -> None:
    def closeness(told: str) -> float:
        return 5 * part(HAND, f" e2e4    E: {told}    B: e2e4", "evaluation")

    assert closeness("0.00") == 1
    # p(1) = 0.5744: 0.0744 off, of 0.25 that are worth nothing.
    assert closeness("1.00") == pytest.approx(1 - 0.07444 / 0.25, abs=1e-4)
    # p(3.67) is 0.75.
    assert closeness("3.60") > closeness("3.70") == closeness("9999") == closeness("-50") == closeness("nan") == 0
    # A mate is a sure win, or a sure loss.
    assert 5 * part(HAND, " h2h4    E: -999.50    B: e2e4", "evaluation") == pytest.approx(1)
    assert part(HAND, " h2h4    E: 999.98    B: e2e4", "evaluation") == 0


def test_an_outcome_worked_by_hand() -> None:
    text = "rnbqkbnr/pppppppp/8/8/8/5N2/PPPPPPPP/RNBQKBNR b KQkq - 1 1+0.5+0+0"
    # f3, side and clock are right; g1 is not: (1 + 2 / 8) of 2 + 2 / 8.
    assert dict(grade(KNIGHT, text).parts) == pytest.approx(
        {"structure": 1, "parsing": 0.8, "similarity": 2 * 1.25 / 2.25, "outcome": 0.5 * 2 / 3}
    )


def test_the_target_has_every_part_in_full() -> None:
    for example in EXAMPLES:
        grades = grade(example, example.target)
        assert dict(grades.parts) == {name: MOST[name] for name in grades.parts}, example
        assert grades.reading.is_readable
        assert grades.is_legal_best == (example.task == TextTask.MOVE)


@st.composite
def near(draw: st.DrawFn, text: str) -> str:
    """Return a text that differs from this one in a place or two."""
    for _ in range(draw(st.integers(1, 3))):
        start, end = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        new = draw(st.text(alphabet=ALPHABET, max_size=6))
        text = draw(st.sampled_from([text[:start] + new + text[end:], text[:start] + new + text[start:], text[:end] + text[start:]]))
    return text


@settings(max_examples=60)
@given(st.sampled_from(EXAMPLES), st.data())
def test_any_text_has_all_parts_in_their_ranges_and_no_more_than_the_target(example: Example, data: st.DataObject) -> None:
    words = st.lists(st.sampled_from([" ", "E:", "B:", "M:", "+", "0.1", "-999.97", "nan", "0", "1", *VALUES])).map(" ".join)
    grades = grade(example, data.draw(st.one_of(st.text(), words, near(example.target))))
    if grades.reading.is_malformed:
        assert grades.total() == grades.total(0.0) == MALFORMED
        assert not any(grades.parts.values())
    else:
        assert all(0 <= value <= MOST[name] for name, value in grades.parts.items())
        assert grades.parts["structure"] >= STRUCTURE[0]
        assert grades.parts["parsing"] >= PARSING[0]
        assert grade(example, example.target).total() >= grades.total() >= grades.total(0.3) >= grades.total(0.0) >= 0.3


TRICKS = {
    "the best move five times": " d2d4 d2d4 d2d4 d2d4 d2d4    E: 1.00 1.00 1.00 1.00 1.00    B: d2d4",
    "a second best move": f"{HAND.target.rpartition('B:')[0]}B: h2h4    B: d2d4",
    "a second list": f" h2h4    E: -999.98    B: h2h4    M:{HAND.target}",
    "the prompt again": HAND.prompt + HAND.target,
    "no numbers": " d2d4 c2c4 e2e4 b2b3 g1f3    E: nan inf -inf 1e999 \u0661.\u0660\u0660    B: d2d4",
    "cut": HAND.target[:-3],
    "words after it": f"{HAND.target} and that is a very good move",
}


@pytest.mark.parametrize("text", TRICKS.values(), ids=TRICKS)
def test_a_trick_has_less_than_the_honest_answer(text: str) -> None:
    assert grade(HAND, text).total() < grade(HAND, HAND.target).total() - 0.05


def test_a_copy_of_the_old_position_is_worth_little() -> None:
    for example in OUTCOMES:
        if not example.truncated:
            sure = write_environment_answer(example.fen, example.reward, terminated=example.terminated, truncated=False)
            assert part(example, sure, "similarity") == 0
            # Not even with the side to move turned over and the clocks put right: what the pieces did is what counts.
            pieces = example.fen.split()[0]
            assert part(example, sure.replace(example.fen, f"{pieces} {example.new_fen.split(maxsplit=1)[1]}"), "similarity") < 0.25
    assert grade(KNIGHT, KNIGHT.prompt).total() == MALFORMED


def test_after_an_illegal_move_the_old_position_is_right_and_the_flag_counts() -> None:
    example = environment_example(chess.Board(), "e2e5", num_history_moves=10)
    assert example.target == f"{chess.STARTING_FEN}+-1.0+0+1"
    as_if_legal = write_environment_answer(KNIGHT.new_fen, 0.001, terminated=False, truncated=False)
    assert part(example, as_if_legal, "outcome") == pytest.approx(1 / 3)
    assert 0 < part(example, as_if_legal, "similarity") < 0.35
