"""Training of a language model."""
