"""Reports of a run's steps, written by hand."""

from typing import Any

from grpo.statistics.intervals import paired_interval

CODE = {"commit": "c" * 40, "is_dirty": False, "lock": "d" * 64}
ENDS = {"checkmate": 40, "stalemate": 4, "insufficient material": 6, "threefold repetition": 45, "fifty moves": 3, "ply cap": 2}


def match(score: float, num_pairs: int = 50) -> dict[str, Any]:
    """Return a match as the reports have it: every pair scored the same."""
    interval = paired_interval([score] * num_pairs)
    return {"score": score, "num_pairs": num_pairs, "text": str(interval), "ends": ENDS, "wins": 1, "draws": 2, "losses": 3}


REPORTS: dict[str, dict[str, Any]] = {
    "join_boards": {
        "rows": 3_300,
        "used_games": 421,
        "splits": {"train": 3_000, "validation": 210, "heldout": 90},
        "natural_phases": {"opening": 7_001, "middlegame": 7_002, "endgame": 7_003},
        "phases": {"opening": 1_100, "middlegame": 1_101, "endgame": 1_099},
        "sources": {"engine": 3_300},
        "labels": {"game": 3_300},
    },
    "pretrain": {"num_steps": 1_400, "has_converged": True, "validation_loss": 2.3612, "top1": 0.2937, "top5": 0.684},
    "baseline": {
        "heldout": {
            "heldout/regret_best": 0.0610,
            "heldout/regret_best/opening": 0.0611,
            "heldout/regret_best/middlegame": 0.0752,
            "heldout/regret_best/endgame": 0.0469,
        },
        "matches": {"random": match(0.75, 30), "stockfish-1-nodes": match(0.25, 31)},
    },
    "finetune": {"first_step": 0, "last_step": 250, "mean_entropy_at_end": 1.7077, "reason": "budget_spent", "message": ""},
    "select": {
        "verdict": "better",
        "scored_by": "played out",
        "candidate_step": 100,
        "heldout_regret_best": {"100": {"mean": 0.0485, "stderr": 0.0011}, "250": {"mean": 0.0497, "stderr": 0.0012}},
        "confirmation_best_moves": match(0.5),
        "confirmation_sampled_moves": match(0.75),
        "previous_champion": None,
    },
}
