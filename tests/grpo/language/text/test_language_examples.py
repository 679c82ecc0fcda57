"""Prompts and targets from the value tables: right by the rules of chess, the same again, and of both tasks in their shares."""

from collections.abc import Sequence

import chess
import numpy as np
import pytest
from made_language import TERMINAL_FENS, language_table, made_up_rows

from grpo.dataset.table import Split, board_table
from grpo.language.text.examples import (
    EnvironmentExample,
    LanguageBoards,
    MoveExample,
    environment_example,
    move_example,
    pawns,
)
from grpo.language.text.tasks import LanguageTask
from grpo.settings.language import LanguageConfig

CONFIG = LanguageConfig()
NUM_BOARDS = 60


@pytest.fixture(scope="module")
def boards() -> LanguageBoards:
    """Return boards of random play."""
    return LanguageBoards.of_table(language_table(NUM_BOARDS), Split.TRAIN, config=CONFIG)


def boards_of(fens: Sequence[str], **changes: float) -> LanguageBoards:
    """Return these boards under other settings."""
    config = LanguageConfig(**{**CONFIG.model_dump(), **changes})
    return LanguageBoards.of_table(board_table(made_up_rows([chess.Board(fen) for fen in fens])), Split.TRAIN, config=config)


def drawn(source: LanguageBoards, count: int, seed: int = 0) -> list[EnvironmentExample]:
    """Return environment examples from all boards in turn."""
    rng = np.random.default_rng(seed)
    examples = [source.example(index % len(source), LanguageTask.ENVIRONMENT, rng=rng) for index in range(count)]
    return [example for example in examples if isinstance(example, EnvironmentExample)]


def test_a_target_worked_by_hand() -> None:
    example = move_example(
        chess.STARTING_FEN,
        ["a2a3", "b2b3", "c2c3", "d2d4", "e2e4", "g1f3", "h2h4"],
        [0.5, 0.3, 0.5, 0.9, 0.6, 0.5, 0.1],
        centipawns=[0, -100, 1, None, 25, -1, None],
        mate_in=[None, None, None, 3, None, None, -12],
        index=7,
    )
    # Best first; the three that are equal by the order of the table, not by their scores.
    assert example.target == " d2d4 e2e4 a2a3 c2c3 g1f3    E: 999.97 0.25 0.00 0.01 -0.01    B: d2d4"
    assert example.prompt == f"P: {chess.STARTING_FEN}    M:"
    assert example.evaluations[-1] == -999.88


def test_scores_as_pawns_never_rise_as_the_score_falls_and_keep_mates_apart() -> None:
    scores = [(None, 1), (None, 99), (None, 5_000), (99_999, None), (12, None), (0, None), (-99_999, None), (None, -200), (None, -1)]
    told = [pawns(*score) for score in scores]
    assert told == sorted(told, reverse=True)
    assert (told[0], told[2], told[3], told[4], told[-1]) == (999.99, 999.01, 990, 0.12, -999.99)
    assert all(len(f"{number:.2f}") <= 7 for number in told)


def test_targets_of_the_policy_task_are_whole_and_list_the_best_legal_moves(boards: LanguageBoards) -> None:
    rng = np.random.default_rng(0)
    for index in range(len(boards)):
        example = boards.example(index, LanguageTask.MOVE, rng=rng)
        assert isinstance(example, MoveExample)
        answer = example.read(example.target)
        assert answer.is_readable
        assert set(example.moves) == {move.uci() for move in chess.Board(example.fen).legal_moves}
        value = dict(zip(example.moves, example.values, strict=True))
        evaluation = dict(zip(example.moves, example.evaluations, strict=True))
        listed = [move for move in answer.moves if move is not None]
        worst_listed = min(value[move] for move in listed)
        assert len(set(listed)) == min(5, len(example.moves))
        assert all(value[move] <= worst_listed for move in set(example.moves) - set(listed))
        assert answer.best == listed[0] == max(example.moves, key=lambda move: value[move])
        assert answer.evaluations == tuple(evaluation[move] for move in listed)


def test_targets_of_the_environment_task_are_what_the_rules_say(boards: LanguageBoards) -> None:
    examples = drawn(boards, 300) + drawn(boards_of(TERMINAL_FENS), 200)
    for example in examples:
        board = chess.Board(example.fen)
        answer = example.read(example.target)
        assert answer.is_readable
        assert example.prompt == f"A: {example.fen}+{example.move}+{' '.join(example.history)}+"
        assert example.history[-1] == example.move
        if example.truncated:
            assert chess.Move.from_uci(example.move) not in board.legal_moves
            assert board.color_at(chess.parse_square(example.move[:2])) == board.turn
            assert (example.new_fen, example.reward, example.terminated) == (example.fen, -1.0, False)
        else:
            board.push_uci(example.move)
            reward = 1.0 if board.is_checkmate() else 0.5 if board.is_game_over() else 0.001
            assert (example.new_fen, example.reward, example.terminated) == (board.fen(), reward, board.is_game_over())
        assert (answer.fen, answer.reward) == (example.new_fen, example.reward)
        assert (answer.terminated, answer.truncated) == (example.terminated, example.truncated)
    assert {example.reward for example in examples} == {0.001, 1.0, 0.5, -1.0}


def test_a_history_leads_from_the_dataset_s_board_to_the_prompt_s(boards: LanguageBoards) -> None:
    rng = np.random.default_rng(0)
    examples = drawn(boards, 400)
    assert max(len(example.history) for example in examples) == CONFIG.num_history_moves
    for example in examples:
        own = boards.example(example.index, LanguageTask.MOVE, rng=rng).fen
        board = chess.Board(own)
        for move in example.history[:-1]:
            board.push_uci(move)
        assert board.fen() == example.fen
    # Half are the board itself, told without a past.
    assert 0.4 < np.mean([len(example.history) == 1 for example in examples]) < 0.62


def test_castling_and_en_passant_are_told_as_the_rules_have_them() -> None:
    castled = environment_example(chess.Board("r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 4 20"), "e8c8", num_history_moves=10, index=0)
    assert castled.target == "2kr3r/8/8/8/8/8/8/R3K2R w KQ - 5 21+0.001+0+0"
    taken = environment_example(chess.Board(TERMINAL_FENS[4]), "e5f6", num_history_moves=10, index=0)
    assert taken.target == "rnbqkbnr/ppp1p1pp/5P2/3p4/8/8/PPPP1PPP/RNBQKBNR b KQkq - 0 3+0.001+0+0"


def test_a_draw_has_each_task_in_its_share_and_each_board_once_while_they_last(boards: LanguageBoards) -> None:
    rng = np.random.default_rng(1)
    examples = boards.draw(rng, 40)
    assert [example.task for example in examples].count(LanguageTask.ENVIRONMENT) == 10
    assert len({example.index for example in examples}) == 40
    # The share holds on average where it is no whole number, and the tasks do not come in blocks.
    ones = [boards.draw(rng, 1)[0].task for _ in range(400)]
    assert 0.18 < np.mean([task == LanguageTask.ENVIRONMENT for task in ones]) < 0.32
    assert sum(example.task == LanguageTask.ENVIRONMENT for example in examples[:20]) not in (0, 10)
    assert len(boards.draw(rng, NUM_BOARDS + 5)) == NUM_BOARDS + 5


def test_boards_are_of_one_split_and_an_empty_one_is_refused() -> None:
    table = board_table(
        made_up_rows([chess.Board()], split=Split.TRAIN) + made_up_rows([chess.Board(TERMINAL_FENS[0])], split=Split.HELDOUT)
    )
    heldout = LanguageBoards.of_table(table, Split.HELDOUT, config=CONFIG)
    assert len(heldout) == 1
    assert heldout.example(0, LanguageTask.MOVE, rng=np.random.default_rng(0)).fen == TERMINAL_FENS[0]
    with pytest.raises(ValueError, match="no boards in its validation split"):
        LanguageBoards.of_table(table, Split.VALIDATION, config=CONFIG)
