"""Prompts and targets from the value tables: right by the rules of chess, the same again, and of both tasks in their shares."""

from collections.abc import Sequence

import chess
import numpy as np
import pytest
from made_language import TERMINAL_FENS, language_table, made_up_rows
from made_tables import board_at, game_row, positions_of, tables

from grpo.board.actions import mirror_move
from grpo.dataset.table import Split, board_table
from grpo.language.text.examples import EnvironmentExample, ImitationBoards, LanguageBoards, move_example
from grpo.language.text.tasks import TextTask
from grpo.settings.language import LanguageConfig

CONFIG = LanguageConfig()
NUM_BOARDS = 60


@pytest.fixture(scope="module")
def boards() -> LanguageBoards:
    return LanguageBoards(language_table(NUM_BOARDS), Split.TRAIN, CONFIG)


def boards_of(fens: Sequence[str], **changes: float) -> LanguageBoards:
    config = LanguageConfig(**{**CONFIG.model_dump(), **changes})
    return LanguageBoards(board_table(made_up_rows([chess.Board(fen) for fen in fens])), Split.TRAIN, config)


def drawn(source: LanguageBoards, count: int, seed: int = 0) -> list[EnvironmentExample]:
    rng = np.random.default_rng(seed)
    examples = [source.example(index % len(source), TextTask.ENVIRONMENT, rng=rng) for index in range(count)]
    return [example for example in examples if isinstance(example, EnvironmentExample)]


def history(example: EnvironmentExample) -> list[str]:
    """Return the moves up to the example's own, as its prompt tells them."""
    return example.prompt.split("+")[2].split()


def test_a_target_worked_by_hand() -> None:
    row = {
        "fen": chess.STARTING_FEN,
        "moves": ["a2a3", "b2b3", "c2c3", "d2d4", "e2e4", "g1f3", "h2h4"],
        "values": [0.5, 0.3, 0.5, 0.9, 0.6, 0.5, 0.1],
        "centipawns": [0, -100, 1, None, 25, -1, None],
        "mate_in": [None, None, None, 3, None, None, -12],
    }
    example = move_example(row)
    # Best first; the three that are equal by the order of the table, not by their scores.
    assert example.target == " d2d4 e2e4 a2a3 c2c3 g1f3    E: 999.97 0.25 0.00 0.01 -0.01    B: d2d4"
    assert example.prompt == f"P: {chess.STARTING_FEN}    M:"
    assert example.evaluations[-1] == -999.88


def test_targets_of_the_environment_task_are_what_the_rules_say(boards: LanguageBoards) -> None:
    examples = drawn(boards, 120) + drawn(boards_of(TERMINAL_FENS), 100)
    for example in examples:
        board = chess.Board(example.fen)
        answer = example.read(example.target)
        assert answer.is_readable
        assert example.prompt.startswith(f"A: {example.fen}+{example.move}+")
        assert history(example)[-1] == example.move
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
    fens = language_table(NUM_BOARDS)["fen"].to_pylist()
    examples = drawn(boards, 240)
    assert max(len(history(example)) for example in examples) == CONFIG.num_history_moves
    for index, example in enumerate(examples):
        board = chess.Board(fens[index % NUM_BOARDS])
        for move in history(example)[:-1]:
            board.push_uci(move)
        assert board.fen() == example.fen
    # Half are the board itself, told without a past.
    assert 0.4 < np.mean([len(history(example)) == 1 for example in examples]) < 0.62


def test_a_draw_has_each_task_in_its_share_and_each_board_once_while_they_last(boards: LanguageBoards) -> None:
    rng = np.random.default_rng(1)
    examples = boards.draw(rng, 40)
    assert [example.task for example in examples].count(TextTask.ENVIRONMENT) == 10
    assert len({example.fen for example in examples if example.task == TextTask.MOVE}) == 30
    # The share holds on average where it is no whole number, and the tasks do not come in blocks.
    ones = [boards.draw(rng, 1)[0].task for _ in range(400)]
    assert 0.18 < np.mean([task == TextTask.ENVIRONMENT for task in ones]) < 0.32
    assert sum(example.task == TextTask.ENVIRONMENT for example in examples[:20]) not in (0, 10)
    assert len(boards.draw(rng, NUM_BOARDS + 5)) == NUM_BOARDS + 5


def test_boards_are_of_one_split_and_an_empty_one_is_refused() -> None:
    table = board_table(
        made_up_rows([chess.Board()], split=Split.TRAIN) + made_up_rows([chess.Board(TERMINAL_FENS[0])], split=Split.HELDOUT)
    )
    heldout = LanguageBoards(table, Split.HELDOUT, CONFIG)
    assert len(heldout) == 1
    fen = heldout.example(0, TextTask.MOVE, rng=np.random.default_rng(0)).fen
    assert fen in (TERMINAL_FENS[0], chess.Board(TERMINAL_FENS[0]).mirror().fen())
    with pytest.raises(ValueError, match="no boards in its validation split"):
        LanguageBoards(table, Split.VALIDATION, CONFIG)


MOVES = "d2d4 d7d5 c2c4 e7e6 b1c3 g8f6"


def test_half_of_the_move_examples_exchange_colors_with_all_that_belongs_to_them(boards: LanguageBoards) -> None:
    rng = np.random.default_rng(0)
    for index in range(len(boards)):
        examples = [boards.example(index, TextTask.MOVE, rng=rng) for _ in range(12)]
        first, other = sorted({example.fen: example for example in examples}.values(), key=lambda example: example.fen)
        assert chess.Board(first.fen).mirror().fen() == other.fen
        assert first.values == other.values
        for example in (first, other):
            assert sorted(example.moves) == sorted(move.uci() for move in chess.Board(example.fen).legal_moves)
        assert [mirror_move(chess.Move.from_uci(move)).uci() for move in first.moves] == list(other.moves)
        assert mirror_move(chess.Move.from_uci(first.read(first.target).best)).uci() == other.read(other.target).best


def imitation_boards(**changes: object) -> ImitationBoards:
    heldout = board_at(MOVES, 2, game_id="other", split=Split.HELDOUT)
    boards, games = tables([board_at(MOVES, 4), heldout], [game_row(MOVES)])
    return ImitationBoards(boards, games, LanguageConfig.model_validate({"environment_share": 0.0, **changes}), max_positions=5)


def test_a_best_move_alone_is_also_imitated_from_the_games_and_never_on_a_board_of_another_split() -> None:
    rng = np.random.default_rng(0)
    examples = [example for _ in range(20) for example in imitation_boards(lists_moves=False).draw(rng, 5)]
    moves = MOVES.split()
    played = {board.fen(): move for board, move in zip(positions_of(MOVES), moves, strict=True)}
    del played[positions_of(MOVES)[2].fen()]
    exchanged = {chess.Board(fen).mirror().fen(): mirror_move(chess.Move.from_uci(move)).uci() for fen, move in played.items()}
    assert {example.prompt: example.target for example in examples} == {
        f"P: {fen}    B:": f" {move}" for fen, move in (played | exchanged).items()
    }
    assert all(example.read(example.target).is_readable for example in examples)
    shared = imitation_boards(lists_moves=False, environment_share=0.4)
    assert [example.task for example in shared.draw(rng, 5)].count(TextTask.ENVIRONMENT) == 2


def test_listed_moves_need_values_which_only_boards_have() -> None:
    [example] = imitation_boards(lists_moves=True).draw(np.random.default_rng(0), 1)
    assert example.fen in (positions_of(MOVES)[4].fen(), positions_of(MOVES)[4].mirror().fen())
    assert "    E: " in example.target
