"""Training of a language model: imitation, a check that its answers can be parsed, GRPO, measurements on held-out boards."""
