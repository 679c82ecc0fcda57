"""Evaluation of checkpoints: held-out regret, exercises, sequential halving, phase guard, and the verdict."""
