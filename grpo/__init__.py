"""The learning library: boards, values, policy, objective, games. Knows no tracker and no orchestrator."""
