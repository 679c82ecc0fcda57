"""Training of a language model: imitation, GRPO, measurements."""
