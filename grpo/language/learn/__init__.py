"""Learning: imitation, the parse-rate gate, GRPO, measurements on held-out boards."""
