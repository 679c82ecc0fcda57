"""Proofs that take minutes, run by `make prove`."""

import random
from pathlib import Path

import chess
import pytest
from real_flow import run_flow

from grpo.board.actions import action_id, action_move, legal_action_ids
from grpo.board.encoding import decode, encode

pytestmark = pytest.mark.prove


def test_the_preset_smoke_gives_the_same_hashes_twice_and_over_one_task_or_four(tmp_path: Path) -> None:
    runs = [run_flow(tmp_path / str(tasks), {"preset": "smoke", "resources": {"num_tasks": tasks}}) for tasks in (1, 4)]
    assert all(run.succeeded for run in runs)
    for artifact in ("boards", "pretrained", "finetuned", "selected"):
        first, second = (getattr(run.data, artifact)["output_hash"] for run in runs)
        assert first == second, artifact


def test_actions_and_encoding_agree_with_python_chess_on_100_000_positions() -> None:
    rng = random.Random(1)
    num_positions = 0
    while num_positions < 100_000:
        board = chess.Board()
        while any(board.legal_moves) and board.ply() < 200:
            moves = list(board.legal_moves)
            ids = [action_id(move, board.turn) for move in moves]
            assert legal_action_ids(board) == sorted(ids)
            assert [action_move(index, board.turn) for index in ids] == moves
            restored = decode(encode([board])[0])
            assert restored.fen().split()[:4] == board.fen().split()[:4]
            num_positions += 1
            board.push(rng.choice(moves))
