"""Know the pretrained policy's strength before GRPO touches it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch

from grpo.boards import Split, board_arrays
from grpo.checkpoints import load_policy
from grpo.config import Settings
from grpo.content import write_json
from grpo.engine import EnginePool
from grpo.matches import MatchResult, play_match
from grpo.metrics import Record
from grpo.openings import make_openings
from grpo.players import BestMovePlayer, EnginePlayer, Player, RandomPlayer
from grpo.regret import heldout_metrics
from grpo.seeding import numpy_stream
from steps.boards import board_keys, read_boards
from steps.work import Work

REPORT: Final = "report.json"
ENGINE_HASH_MIB: Final = 1  # Cleared before each move, so that equal positions get equal answers; a small one is cheap to clear.


def play_baseline(
    settings: Settings, *, boards: Path, pretrained: Path, engine_path: str, num_processes: int, device: torch.device, work: Work
) -> None:
    """Write held-out regret, and the score against a random mover and each Stockfish, as the policy stands before GRPO."""
    policy, _ = load_policy(pretrained, device)
    heldout = heldout_metrics(policy, board_arrays(read_boards(boards), split=Split.HELDOUT, strong=True))
    work.record(Record(0, heldout))
    config = settings.evaluation
    matches: dict[str, Any] = {}
    total = 2 * config.num_baseline_pairs * (1 + len(config.opponent_nodes))
    with EnginePool(engine_path, num_processes=num_processes, options={"Hash": ENGINE_HASH_MIB}) as pool:
        openings = make_openings(
            config,
            count=config.num_baseline_pairs,
            rng=numpy_stream(settings.seed, "openings", "baseline"),
            pool=pool,
            exclude=board_keys(boards),
        )
        opponents: list[tuple[int, Player]] = [
            (0, RandomPlayer(numpy_stream(settings.seed, "random_player"))),
            *((nodes, EnginePlayer(pool, limit=f"nodes {nodes}", name=f"stockfish-{nodes}-nodes")) for nodes in config.opponent_nodes),
        ]
        for number, (nodes, opponent) in enumerate(opponents):
            played = 2 * config.num_baseline_pairs * number
            result = play_match(
                BestMovePlayer(policy, "pretrained"),
                opponent,
                openings,
                max_plies=config.max_plies,
                on_games_done=lambda done, played=played: work.progress(played + done, total, "games"),  # type: ignore[misc]
            )
            matches[opponent.name] = match_facts(result)
            name = "baseline/score_engine" if nodes else "baseline/score_random"
            work.record(Record(nodes, {name: result.interval().score}))
    write_json(work.folder / REPORT, {"heldout": heldout, "matches": matches})


def match_facts(result: MatchResult) -> dict[str, Any]:
    """Return a match as plain data: score with interval, and how the games ended."""
    wins, draws, losses = result.wins_draws_losses()
    return {
        **asdict(result.interval()),
        "text": str(result.interval()),
        "wins": wins,
        "draws": draws,
        "losses": losses,
        "ends": result.ends(),
    }
