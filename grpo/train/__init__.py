"""Imitation and GRPO: states, rollouts, advantages, objective, controllers, probes, trainer."""
