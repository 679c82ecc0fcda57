"""Writes the policy that comes with the project: `python -m infra.included RUN`, in the folder where the run was started.

RUN comes from `chess-grpo sweep laptop --seeds 71`. A change of the network or its features needs a new run.
"""

import shutil
import sys
from pathlib import Path
from typing import Final

import chess
import torch

from grpo.base.files import write_json
from grpo.base.seeding import numpy_stream
from grpo.board.actions import push_random_moves
from steps.cli.export import write_export
from steps.common.policies.open import open_policy
from steps.run.machine import Machine
from steps.run.store import Store
from steps.track.find import INCLUDED_FOLDER, find_policy

MOVES: Final = INCLUDED_FOLDER.with_name("moves.json")
"""FEN -> the included policy's best move there, in UCI."""
_NUM_POSITIONS: Final = 50
_MAX_PLIES: Final = 80
_MIN_LEAD: Final = 0.02  # With this lead of the best move in probability, rounding on another machine changes no move.


def best_moves(folder: Path, boards: list[chess.Board], *, min_lead: float = 0.0) -> dict[str, str]:
    """Return FEN -> a network's best move, if its probability is at least `min_lead` above the second move's."""
    probabilities = open_policy(folder, torch.device("cpu")).move_probabilities(boards)
    assert probabilities is not None
    ranked = {board.fen(): sorted(moves.items(), key=lambda move: -move[1]) for board, moves in zip(boards, probabilities, strict=True)}
    return {fen: moves[0][0] for fen, moves in ranked.items() if len(moves) > 1 and moves[0][1] - moves[1][1] >= min_lead}


def _random_boards() -> list[chess.Board]:
    rng = numpy_stream(0, "included")
    boards = [chess.Board() for _ in range(2 * _NUM_POSITIONS)]
    for board in boards:
        push_random_moves(board, int(rng.integers(_MAX_PLIES)), rng)
    return [board for board in boards if any(board.legal_moves)]


def main(name: str) -> None:
    machine = Machine.here()
    policy = find_policy(name, machine)
    shutil.rmtree(INCLUDED_FOLDER, ignore_errors=True)
    write_export(policy, Store.of(machine), INCLUDED_FOLDER)
    moves = best_moves(INCLUDED_FOLDER, _random_boards(), min_lead=_MIN_LEAD)
    write_json(MOVES, dict(list(moves.items())[:_NUM_POSITIONS]))


if __name__ == "__main__":
    main(*sys.argv[1:])
