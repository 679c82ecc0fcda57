"""Held-out regret: what the policy's moves give away, under a stronger search than the reward's.

The cheapest signal of strength; it screens checkpoints, games decide. Regret of a state: max Q - sum p Q (moves sampled), and
max Q - Q(likeliest move).
"""

import torch

from grpo.boards import BoardArrays
from grpo.phases import PHASES
from grpo.policy import Policy, PositionBatch

_BATCH = 512


@torch.no_grad()
def heldout_metrics(policy: Policy, boards: BoardArrays) -> dict[str, float]:
    """Return regret and entropy at T = 1 on boards whose `values` come from the stronger search."""
    positions, values = PositionBatch.from_arrays(boards), torch.from_numpy(boards.values)
    sampled, best, entropies = [], [], []
    for rows in torch.split(torch.arange(len(boards)), _BATCH):
        distribution = policy.distribution(positions.take(rows), temperature=1.0)
        width = distribution.is_legal.shape[1]
        of_moves = values[rows][:, :width].to(distribution.log_probs.device)
        top = of_moves.max(1).values
        sampled.append(top - distribution.expectation(of_moves))
        best.append(top - of_moves.gather(1, distribution.best()[:, None])[:, 0])
        entropies.append(distribution.entropy())
    regret_best = torch.cat(best).cpu()
    phases = torch.from_numpy(boards.phases)
    return {
        "heldout/regret_sampled": torch.cat(sampled).mean().item(),
        "heldout/regret_best": regret_best.mean().item(),
        "heldout/regret_best_stderr": (regret_best.std() / len(boards) ** 0.5).item(),
        **{
            f"heldout/regret_best/{phase}": regret_best[phases == index].mean().item()
            for index, phase in enumerate(PHASES)
            if (phases == index).any()
        },
        "heldout/entropy": torch.cat(entropies).mean().item(),
    }
