"""GRPO for chess in one file: games, move values, imitation, GRPO and a match. Takes about a minute on two cores.

Imitation of engine games trains a policy, the start. GRPO trains a copy of the start, and both play a match. The value of a move is the
mover's win probability after the move, by Stockfish.
"""

import shutil

import chess
import numpy as np
import pyarrow as pa
import torch

from grpo import (
    BestMovePlayer,
    DatasetStates,
    EnginePool,
    NetworkPolicy,
    NetworkProblem,
    Trainer,
    imitate,
    new_policy,
    play_match,
    read_settings,
    value_tables,
)
from grpo.dataset.labels import label_arrays
from grpo.dataset.quotas import Quota, boards_per_cell
from grpo.dataset.table import GAME_SCHEMA, Split, board_arrays, board_row, board_table
from grpo.dataset.units import unit_positions
from grpo.engine.answers import EngineError
from grpo.engine.move_values import engine_options
from grpo.match.openings import make_openings
from grpo.match.regret import heldout_metrics
from grpo.settings.tree import Settings

SETTINGS = """
preset = "smoke"
seed = 1
boards.num_train = 1_200
boards.num_validation = 150
boards.num_heldout = 150
boards.num_units = 1
pretrain.steps_per_validation = 40
pretrain.num_steps = 160
grpo.num_steps = 40
grpo.states_per_step = 256
"""
NUM_OPENINGS = 50


def make_boards(settings: Settings, stockfish: str) -> tuple[pa.Table, pa.Table]:
    """Return boards with the value of every legal move (equally many of each phase), and the engine games that contain them."""
    quota = Quota(boards_per_cell(settings.boards), settings.boards, seed=settings.seed, excluded=frozenset())
    players = EnginePool(stockfish, num_processes=1, options={})
    judge = EnginePool(stockfish, num_processes=1, options=engine_options())
    rows = []
    with players, judge:
        for positions in unit_positions(quota, settings.boards, unit=0, seed=settings.seed, players=players):
            tables = value_tables([chess.Board(position.fen) for position in positions], judge, depth=settings.boards.depth)
            for position, table in zip(positions, tables, strict=True):
                if isinstance(table, EngineError):
                    raise table
                rows.append(board_row(position, table, None, engine="stockfish", limit=f"depth {settings.boards.depth}"))
    return board_table(rows), pa.Table.from_pylist(list(quota.games.values()), schema=GAME_SCHEMA)


def train_by_imitation(policy: NetworkPolicy, boards: pa.Table, games: pa.Table, settings: Settings) -> None:
    train = label_arrays(boards, games, max_positions=settings.pretrain.max_positions)
    validation = board_arrays(boards, split=Split.VALIDATION)
    for record in imitate(policy, train, validation, settings.pretrain, seed=settings.seed):
        print(f"imitation, step {record.step}: validation loss {record.metrics['imitation/validation_loss']:.3f}")


def train_by_grpo(start: NetworkPolicy, boards: pa.Table, settings: Settings) -> NetworkPolicy:
    """Return the policy after GRPO. `start` stays frozen: the loss's KL compares with it."""
    config = settings.grpo
    arrays = board_arrays(boards, split=Split.TRAIN)
    states = DatasetStates(arrays, states_per_step=config.states_per_step, seed=settings.seed, prepared=start.prepared)
    problem = NetworkProblem(start, states, config, seed=settings.seed)
    trainer = Trainer(problem, start.copied(), config, seed=settings.seed)
    for _ in range(config.num_steps):
        record = trainer.step()  # Samples a group of moves for each board, and updates the weights.
        if record.step % 10 == 0:
            numbers = (f"{name} {record.metrics[f'grpo/{name}']:.4f}" for name in ("reward_gain", "regret", "entropy", "kl_reference"))
            print(f"GRPO, step {record.step}:", ", ".join(numbers))
    return trainer.evaluation_policy


def main() -> None:
    settings = read_settings(SETTINGS)
    stockfish = shutil.which("stockfish") or "/usr/games/stockfish"  # root's PATH has no /usr/games.
    torch.set_num_threads(1)

    boards, games = make_boards(settings, stockfish)
    print(f"{boards.num_rows} boards, each with the value of every legal move")
    start = new_policy(settings.policy, seed=settings.seed, device=torch.device("cpu"))
    train_by_imitation(start, boards, games, settings)
    trained = train_by_grpo(start, boards, settings)

    heldout = board_arrays(boards, split=Split.HELDOUT)
    before, after = (heldout_metrics(policy, heldout)["heldout/regret_sampled"] for policy in (start, trained))
    print(f"win probability that a sampled move gives away on held-out boards: {before:.4f} before GRPO, {after:.4f} after")
    with EnginePool(stockfish, num_processes=1, options={}) as pool:
        rng = np.random.default_rng(settings.seed)
        openings = make_openings(settings.evaluation, count=NUM_OPENINGS, rng=rng, pool=pool, exclude=set(boards["key"].to_pylist()))
    result = play_match(BestMovePlayer(trained, "trained"), BestMovePlayer(start, "start"), openings, max_plies=120)
    score = result.interval()
    print(f"{NUM_OPENINGS} openings, both colors: score against the start {score.score_text}")


if __name__ == "__main__":
    main()
