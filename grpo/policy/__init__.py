"""The chess network, the distribution over legal moves, and a policy's files."""
