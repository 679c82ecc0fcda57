"""Features of replies are those of the boards after the moves, with a cache and without."""

import chess
import torch
from doubles import some_boards
from torch import Tensor

from grpo.board.actions import action_move
from grpo.board.features import NUM_ROWS, MoveFeatures
from grpo.board.replies import cache_replies, find_replies, reply_features
from grpo.policy.distribution import PositionBatch
from grpo.train.states import reflected

EMBEDDING = torch.randn(NUM_ROWS, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
MATES = chess.Board("6k1/5ppp/8/8/8/8/8/K2R4 w - - 0 1")  # d1d8 leaves no reply.
BOARDS = [*some_boards(40), MATES]
POSITIONS = PositionBatch.from_boards(BOARDS)


def sums(features: MoveFeatures) -> Tensor:
    return features.sums(EMBEDDING)


def test_replies_have_the_features_of_the_boards_after_the_moves() -> None:
    rows, columns = POSITIONS.is_legal.nonzero(as_tuple=True)
    ids = POSITIONS.action_ids[rows, columns]
    replies = reply_features(POSITIONS.encodings, rows, ids)
    after = []
    for row, index in zip(rows.tolist(), ids.tolist(), strict=True):
        board = BOARDS[row].copy(stack=False)
        board.push(action_move(index, board.turn))
        after.append(board)
    numbers = torch.tensor([board.legal_moves.count() for board in after])
    assert torch.equal((replies.counts > 0).sum(1), numbers)
    assert (numbers == 0).any()
    answered = [board for board in after if any(board.legal_moves)]
    torch.testing.assert_close(sums(replies), sums(PositionBatch.from_boards(answered).move_features()), rtol=0, atol=1e-9)


def test_a_cache_changes_no_result() -> None:
    generator = torch.Generator().manual_seed(1)
    columns = torch.stack([torch.randperm(20, generator=generator)[:4] for _ in BOARDS])
    columns = torch.where(columns < POSITIONS.is_legal.sum(1, keepdim=True), columns, -1)
    assert (columns < 0).any()
    cached = cache_replies(POSITIONS.encodings, POSITIONS.action_ids, columns)
    rows = torch.arange(len(BOARDS)).repeat_interleave(2)
    for wanted in (columns[:, :2].clamp(min=0).flatten(), torch.zeros_like(rows)):  # Nearly all are cached; nearly none is.
        plain = find_replies(POSITIONS.encodings, POSITIONS.action_ids, None, rows, wanted)
        found = find_replies(POSITIONS.encodings, POSITIONS.action_ids, cached, rows, wanted)
        assert torch.equal(sums(found), sums(plain))
        assert torch.equal(found.num_entries, plain.num_entries)


def test_cached_replies_stay_with_their_boards() -> None:
    cached = cache_replies(POSITIONS.encodings, POSITIONS.action_ids, torch.zeros(len(BOARDS), 1, dtype=torch.int64))
    chosen = torch.tensor([39, 3, 3, 17, 40])
    some = POSITIONS.select_rows(chosen)
    alone = reply_features(some.encodings, torch.arange(5), some.action_ids[:, 0])
    assert torch.equal(sums(cached.select_rows(chosen).features), sums(alone))
    turned = torch.arange(len(BOARDS)) % 2 > 0
    images = reflected(POSITIONS, turned)
    of_images = reply_features(images.encodings, torch.arange(len(BOARDS)), images.action_ids[:, 0])
    is_mirrored = (images.encodings != POSITIONS.encodings).any(1)
    mirrored = cached.reflected(is_mirrored).features
    order = [features.counts.long().sum(1) for features in (mirrored, of_images)]
    assert torch.equal(*order)
    # A mirrored board's replies have another order, so their sums are compared as sets.
    ours, plain = (sums(features).sum(1).split((features.counts > 0).sum(1).tolist()) for features in (mirrored, of_images))
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one.sort().values, other.sort().values, rtol=0, atol=1e-7)


def test_one_move_of_each_board_is_selected() -> None:
    features = POSITIONS.move_features()
    columns = POSITIONS.is_legal.sum(1) - 1
    firsts = POSITIONS.is_legal.sum(1).cumsum(0) - 1
    assert torch.equal(sums(features.select_moves(columns)), sums(features)[firsts])
