"""The policy network, the distribution over legal moves, and policy files on disk."""
