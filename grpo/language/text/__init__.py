"""A language model's two chess tasks as text."""
