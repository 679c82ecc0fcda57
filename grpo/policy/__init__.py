"""The policy network, the distribution over legal moves, weight averaging (EMA), and policy files on disk."""
