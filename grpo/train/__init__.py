"""Imitation and GRPO. Read `trainer.py` first: states, rollout, advantages, objective and controllers follow in the order of a step."""
