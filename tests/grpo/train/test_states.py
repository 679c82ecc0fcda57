"""States to learn from: every board keeps its own moves, values and phase, and is shown one way and its mirror image the other."""

from dataclasses import replace
from functools import partial

import chess
import pytest
import torch
from doubles import (
    MadeUpValues,
    check_states,
    fake_arrays,
    legal_moves,
    lively_policy,
    name_of,
    names_of,
    some_boards,
    trainer_of,
)

from grpo.base.errors import PlainError
from grpo.board.actions import action_id
from grpo.dataset.table import BoardArrays
from grpo.policy.distribution import PositionBatch
from grpo.settings.grpo import GrpoConfig
from grpo.train.states import DatasetStates, reflected, valued_states, with_reference

BOARDS = some_boards(50)
ARRAYS = fake_arrays(BOARDS)
# King h1, rook on the second rank: g1 is the only move.
FORCED = chess.Board("7k/8/8/8/8/8/r7/7K w - - 0 1")


def source_of(arrays: BoardArrays = ARRAYS, *, size: int = 16, seed: int = 0) -> DatasetStates:
    return DatasetStates(arrays, states_per_step=size, seed=seed)


def test_an_epoch_shows_no_board_twice_in_an_order_of_its_own_whatever_was_asked_before() -> None:
    source = source_of()
    shown = [names_of(source.states(step)) for step in range(9)]
    for epoch in range(3):
        assert len({name for step in shown[3 * epoch : 3 * epoch + 3] for name in step}) == 48, "only the remainder is left out"
    assert shown[0] != shown[3] != names_of(source_of(seed=1).states(3))
    for step in (7, 2, 3, 2, 0):
        assert names_of(source.states(step)) == names_of(source_of().states(step)) == shown[step]


def test_boards_with_one_legal_move_are_left_out_and_too_few_are_refused() -> None:
    arrays = fake_arrays([FORCED, *BOARDS[:10]])
    states = source_of(arrays, size=10).states(0)
    check_states(states)
    assert set(names_of(states)) == {name_of(board) for board in BOARDS[:10]}
    with pytest.raises(PlainError, match=r"has 10 boards with at least two legal moves; a step uses 11: lower grpo\.states_per_step"):
        source_of(arrays, size=11)


@pytest.mark.parametrize("dtype", ["bool", "int64", "float64"])
def test_values_of_any_type_are_learned_as_float32(dtype: str) -> None:
    values = source_of(replace(ARRAYS, values=(ARRAYS.values > 0.5).astype(dtype))).states(0).values
    assert values.dtype == torch.float32
    assert values.equal(source_of(replace(ARRAYS, values=(ARRAYS.values > 0.5).astype("float32"))).states(0).values)


def test_boards_that_the_engine_failed_on_are_dropped_and_counted_and_others_keep_their_own_values() -> None:
    failed = {BOARDS[index].epd() for index in (0, 3, 4)}
    states, kept = valued_states(BOARDS[:7], MadeUpValues(fails_on=lambda board: board.epd() in failed))
    check_states(states)
    assert kept == [1, 2, 5, 6]
    assert names_of(states) == [name_of(BOARDS[index]) for index in kept]


# Mirror images.


def left_right(board: chess.Board) -> chess.Board:
    return board.transform(chess.flip_horizontal)


def without_castling(boards: list[chess.Board]) -> list[chess.Board]:
    return [board for board in boards if not board.clean_castling_rights()]


def test_the_image_of_a_batch_is_the_batch_of_python_chess_s_images_with_each_move_in_its_column(random_boards: list[chess.Board]) -> None:
    boards = without_castling(random_boards)
    boards = [*boards[::20], next(board for board in boards if board.has_legal_en_passant())]
    positions = PositionBatch.from_boards(boards)
    images = reflected(positions, torch.ones(len(boards), dtype=torch.bool))
    assert torch.equal(images.encodings, PositionBatch.from_boards([left_right(board) for board in boards]).encodings)
    assert torch.equal(images.is_legal, positions.is_legal)
    for row, board in enumerate(boards):
        moves = legal_moves(board)
        expected = [action_id(chess.Move(move.from_square ^ 7, move.to_square ^ 7, promotion=move.promotion), board.turn) for move in moves]
        assert images.action_ids[row, : len(moves)].tolist() == expected


def test_only_those_that_are_wanted_and_have_no_castling_rights_are_turned_and_twice_reflected_is_as_before(
    random_boards: list[chess.Board],
) -> None:
    boards = random_boards[::40]
    positions, wanted = PositionBatch.from_boards(boards), torch.arange(len(boards)) % 3 > 0
    once = reflected(positions, wanted)
    is_turned = wanted & ~torch.tensor([bool(board.clean_castling_rights()) for board in boards])
    assert 0 < is_turned.sum() < wanted.sum()
    assert torch.equal((once.encodings != positions.encodings).any(1), is_turned)
    assert torch.equal(reflected(once, wanted).encodings, positions.encodings)
    assert torch.equal(reflected(once, wanted).action_ids, positions.action_ids)


def test_a_dataset_shows_each_board_one_way_in_one_epoch_and_the_other_way_in_the_next(random_boards: list[chess.Board]) -> None:
    boards = [board for board in without_castling(random_boards) if board.legal_moves.count() > 1][:64]
    states = DatasetStates(fake_arrays(boards), states_per_step=64, seed=1)

    def shown(step: int) -> set[bytes]:
        return {row.numpy().tobytes() for row in states.states(step).positions.encodings}

    plain = {row.tobytes() for row in fake_arrays(boards).encodings}
    first, second, third = shown(0), shown(1), shown(2)
    assert first == third
    assert 10 < len(first & plain) < 54
    for board in boards:
        ways = {PositionBatch.from_boards([way]).encodings[0].numpy().tobytes() for way in (board, left_right(board))}
        assert len(ways & (first | second)) == len(ways), board.fen()


def test_the_references_stored_probabilities_are_those_that_it_computes_for_each_board_and_its_image(
    random_boards: list[chess.Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = fake_arrays([board for board in random_boards[::15] if board.legal_moves.count() > 1][:64])
    config = GrpoConfig(states_per_step=64, kl_coefficient=0.5, temperature=1.3, learning_rate=0.02)
    policy, trainers = lively_policy(2), []
    for prepared in (PositionBatch.with_features, partial(with_reference, policy=lively_policy())):
        dataset = DatasetStates(arrays, states_per_step=64, seed=1, prepared=prepared)
        trainers.append(trainer_of(config, arrays, policy=policy.copied(), dataset=dataset))
    monkeypatch.setattr(trainers[1].problem.reference, "distribution", None)
    for _ in range(4):  # Each board both ways.
        expected, metrics = (trainer.step().metrics["grpo/kl_reference"] for trainer in trainers)
        assert metrics == pytest.approx(expected, rel=1e-4)
        assert expected > 0.01
