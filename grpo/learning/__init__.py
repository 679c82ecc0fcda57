"""Imitation and GRPO: states, rollouts, advantages, objective, trainer, checkpoints."""
