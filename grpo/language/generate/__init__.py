"""Answers of a language model: generation, retries, its player, its UCI search."""
