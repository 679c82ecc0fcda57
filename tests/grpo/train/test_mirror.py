"""Left-right mirror images against python-chess's, and what is left as it is."""

import chess
import torch
from doubles import fake_arrays, legal_moves

from grpo.board.actions import action_id
from grpo.board.encoding import decode
from grpo.policy.distribution import PositionBatch
from grpo.train.mirror import reflected
from grpo.train.states import DatasetStates


def left_right(board: chess.Board) -> chess.Board:
    """Return python-chess's mirror image."""
    return board.transform(chess.flip_horizontal)


def without_castling(boards: list[chess.Board]) -> list[chess.Board]:
    return [board for board in boards if not board.clean_castling_rights()]


def test_the_image_of_a_batch_is_the_batch_of_python_chess_s_images(random_boards: list[chess.Board]) -> None:
    boards = without_castling(random_boards)[::7]
    assert any(board.has_legal_en_passant() for board in boards)
    positions = PositionBatch.from_boards(boards)

    images = reflected(positions, torch.ones(len(boards), dtype=torch.bool))

    assert torch.equal(images.encodings, PositionBatch.from_boards([left_right(board) for board in boards]).encodings)
    assert torch.equal(images.is_legal, positions.is_legal)


def test_each_move_keeps_its_column_and_becomes_its_own_image(random_boards: list[chess.Board]) -> None:
    boards = without_castling(random_boards)[::50]
    images = reflected(PositionBatch.from_boards(boards), torch.ones(len(boards), dtype=torch.bool))

    for row, board in enumerate(boards):
        moves = legal_moves(board)
        expected = [action_id(chess.Move(move.from_square ^ 7, move.to_square ^ 7, promotion=move.promotion), board.turn) for move in moves]
        assert images.action_ids[row, : len(moves)].tolist() == expected


def test_twice_reflected_is_as_before_and_castling_rights_forbid_it(random_boards: list[chess.Board]) -> None:
    boards = random_boards[::40]
    positions, everything = PositionBatch.from_boards(boards), torch.ones(len(random_boards[::40]), dtype=torch.bool)

    once = reflected(positions, everything)

    has_rights = torch.tensor([bool(board.clean_castling_rights()) for board in boards])
    is_same = (once.encodings == positions.encodings).all(1)
    assert has_rights.any()
    assert is_same[has_rights].all()
    assert not is_same[~has_rights].all()
    assert torch.equal(reflected(once, everything).encodings, positions.encodings)
    assert torch.equal(reflected(once, everything).action_ids, positions.action_ids)


def test_only_those_that_are_wanted_are_turned(random_boards: list[chess.Board]) -> None:
    boards = without_castling(random_boards)[:30]
    positions = PositionBatch.from_boards(boards)
    wanted = torch.arange(30) % 3 == 0

    some, all_of_them = reflected(positions, wanted), reflected(positions, torch.ones(30, dtype=torch.bool))

    assert torch.equal(some.encodings[wanted], all_of_them.encodings[wanted])
    assert torch.equal(some.encodings[~wanted], positions.encodings[~wanted])


def test_a_dataset_shows_each_board_one_way_in_one_epoch_and_the_other_way_in_the_next(random_boards: list[chess.Board]) -> None:
    boards = [board for board in without_castling(random_boards) if board.legal_moves.count() > 1][:64]
    states = DatasetStates(fake_arrays(boards), states_per_step=64, seed=1, mirrors_boards=True)

    def shown(step: int) -> set[bytes]:
        return {row.numpy().tobytes() for row in states.states(step).positions.encodings}  # type: ignore[arg-type]

    plain = {row.tobytes() for row in fake_arrays(boards).encodings}
    first, second, third = shown(0), shown(1), shown(2)
    assert first == third
    assert 10 < len(first & plain) < 54
    for board in boards:
        ways = {PositionBatch.from_boards([way]).encodings[0].numpy().tobytes() for way in (board, left_right(board))}
        assert len(ways & (first | second)) == len(ways), board.fen()


def test_values_go_with_their_moves_when_a_dataset_reflects(random_boards: list[chess.Board]) -> None:
    boards = [board for board in without_castling(random_boards) if board.legal_moves.count() > 1][:64]
    plain = DatasetStates(fake_arrays(boards), states_per_step=64, seed=1, mirrors_boards=False).states(0)  # type: ignore[arg-type]
    shown = DatasetStates(fake_arrays(boards), states_per_step=64, seed=1, mirrors_boards=True).states(0)  # type: ignore[arg-type]

    assert torch.equal(shown.values, plain.values)
    for row in range(64):
        is_image = decode(shown.positions.encodings[row].numpy()).fen() != decode(plain.positions.encodings[row].numpy()).fen()
        moves = int(plain.positions.is_legal[row].sum())
        assert is_image != torch.equal(shown.positions.action_ids[row, :moves], plain.positions.action_ids[row, :moves])
