"""Imitation and GRPO; read `trainer.py` first."""
