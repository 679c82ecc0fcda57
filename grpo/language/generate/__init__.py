"""Answer generation: sampling, retries, the player, the UCI search."""
