"""Left-right mirror images against python-chess's, and what is left as it is."""

import chess
import torch
from doubles import fake_arrays, legal_moves

from grpo.board.actions import action_id
from grpo.policy.distribution import PositionBatch
from grpo.train.mirror import reflected
from grpo.train.states import DatasetStates


def left_right(board: chess.Board) -> chess.Board:
    """Return python-chess's mirror image."""
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
