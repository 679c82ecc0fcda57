"""`chess-grpo plan-games`: what it says, and how it refuses."""

from collections.abc import Callable
from functools import partial

import pytest

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(console: Run) -> Run:
    return partial(console, "plan-games")


def test_the_whole_answer_to_the_facts_own_question(run: Run) -> None:
    code, said, errors = run("--level", "0.05", "--games", "64")
    assert (code, errors) == (0, "")
    assert said.splitlines() == [
        "To show a difference of 30 Elo (score 0.543) with probability 80%,",
        "one-sided level 5.0%, 30% draws, pair correlation 0:",
        "  against each other: 578 games (289 openings, each with both colors)",
        "  586 by the interval of this project's verdicts, which adds a pair lost and a pair won",
        "  each against a common opponent, scores near 0.50: 1,160 games each, 2,320 in all",
        "Or sequentially, until the result is clear, by",
        "SPRT [0, 30] Elo, logistic, alpha 0.05, beta 0.05:",
        "  if the truth is +0 Elo: about 519 games on average, accepted in 5%",
        "  if the truth is +15 Elo: about 864 games on average, accepted in 50%",
        "  if the truth is +30 Elo: about 514 games on average, accepted in 95%",
        "64 head-to-head games show a difference of 94 Elo with that probability, and no smaller one",
        "(by the interval of this project's verdicts).",
    ]


def test_without_options_the_test_is_the_one_that_verdicts_use(run: Run) -> None:
    assert "one-sided level 2.5%" in run()[1]
    assert run() == run("--level", "0.025", "--probability", "0.8", "--draw-rate", "0.3", "--elo", "30", "--sprt", "0", "30")


def test_the_sequential_test_takes_its_own_bounds_errors_and_model(run: Run) -> None:
    said = run("--sprt", "-5", "20", "--alpha", "0.01", "--beta", "0.1", "--model", "normalised")[1]
    assert "SPRT [-5, 20] Elo, normalised, alpha 0.01, beta 0.1:" in said
    assert "if the truth is +7.5 Elo" in said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--elo", "0"], "cannot be shown by any number of games"),
        (["--elo", "-30"], "cannot be shown by any number of games"),
        (["--elo", "nan"], "'nan' is not a finite number"),
        (["--elo", "400"], "impossible at 30% draws, which leave 0.150 to 0.850"),
        (["--draw-rate", "1"], "draw rate of 1.0"),
        (["--draw-rate", "30"], "draw rate of 30.0"),
        (["--pair-correlation", "-1"], "pair correlation of -1.0"),
        (["--level", "0.5"], "level of 0.5 is no test"),
        (["--probability", "1"], "probability of 1.0 cannot be planned for"),
        (["--probability", "80"], "probability of 80.0 cannot be planned for"),
        (["--games", "1"], "1 games are not a pair"),
        (["--opponent-score", "0.01"], "impossible at 30% draws"),
        (["--opponent-score", "0"], "says nothing of strength"),
        (["--sprt", "30", "0"], "elo0 (30.0) must be less than elo1 (0.0)"),
        (["--sprt", "0", "1e-9"], "too close to tell apart"),
        (["--sprt", "0", "inf"], "'inf' is not a finite number"),
        (["--alpha", "0.6", "--beta", "0.6"], "together below 1"),
        (["--elo", "many"], "'many' is not a number"),
        (["--model", "bayesian"], "it cannot be 'bayesian'"),
    ],
)
def test_an_impossible_question_is_answered_by_exit_code_2_and_the_reason(run: Run, arguments: list[str], reason: str) -> None:
    code, said, errors = run(*arguments)
    assert (code, said) == (2, "")
    assert reason in errors
    assert "Traceback" not in errors
