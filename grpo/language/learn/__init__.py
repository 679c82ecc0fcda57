"""Learning: imitation, a check that answers can be parsed, GRPO, measurements on held-out boards."""
