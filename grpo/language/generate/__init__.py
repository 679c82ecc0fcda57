"""Answer generation: sampling, retries after illegal moves, the player, the UCI search."""
