"""Held-out regret: what the policy's moves give away, under a stronger search than the reward's.

The cheapest signal of strength; it screens checkpoints, games decide. Regret of a state: max Q - sum p Q (moves sampled), and
max Q - Q(likeliest move).
"""

import torch

from grpo.boards import BoardArrays
from grpo.phases import PHASES
from grpo.policy import Policy, PositionBatch

_BATCH = 512
BLUNDER = 0.10
"""A move that is worth at least this much less than the best is a blunder."""


@torch.no_grad()
def heldout_metrics(policy: Policy, boards: BoardArrays) -> dict[str, float]:
    """Return regret, expected value and entropy at T = 1 on boards whose `values` come from the stronger search."""
    positions, values = PositionBatch.from_arrays(boards), torch.from_numpy(boards.values)
    columns: dict[str, list[torch.Tensor]] = {}
    for rows in torch.split(torch.arange(len(boards)), _BATCH):
        distribution = policy.distribution(positions.take(rows), temperature=1.0)
        probs, is_legal = distribution.probs, distribution.is_legal
        of_moves = values[rows][:, : is_legal.shape[1]].to(probs.device)
        top, best = of_moves.masked_fill(~is_legal, -torch.inf).max(1)
        expected = distribution.expectation(of_moves)
        found = {
            "heldout/expected_value": expected,
            "heldout/regret_sampled": top - expected,
            "heldout/regret_best": top - of_moves.gather(1, distribution.best()[:, None])[:, 0],
            "heldout/entropy": distribution.entropy(),
            "heldout/best_move_probability": probs.gather(1, best[:, None])[:, 0],
            "heldout/blunder_mass": (probs * (top[:, None] - of_moves >= BLUNDER) * is_legal).sum(1),
        }
        for name, column in found.items():
            columns.setdefault(name, []).append(column.cpu())
    whole = {name: torch.cat(parts) for name, parts in columns.items()}
    phases = torch.from_numpy(boards.phases)
    return {
        **{name: column.mean().item() for name, column in whole.items()},
        "heldout/regret_best_stderr": (whole["heldout/regret_best"].std() / len(boards) ** 0.5).item(),
        **{
            f"{name}/{phase}": whole[name][phases == index].mean().item()
            for name in _BY_PHASE
            for index, phase in enumerate(PHASES)
            if (phases == index).any()
        },
    }


_BY_PHASE = ("heldout/expected_value", "heldout/regret_sampled", "heldout/regret_best", "heldout/entropy")
