"""Answer generation of a language model: sampling, retries after illegal moves, its player, its UCI search."""
