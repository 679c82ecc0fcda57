"""Evaluation of checkpoints: held-out regret, puzzles, EPD suites, sequential halving, phase guard, and the verdict."""
