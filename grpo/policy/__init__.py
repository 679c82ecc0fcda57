"""The network, the distribution over legal moves, weight averaging, and policy files on disk."""
