"""Imitation and GRPO: states, rollouts, advantages, objective, controllers, trainer."""
