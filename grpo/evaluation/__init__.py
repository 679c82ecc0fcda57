"""What a checkpoint is measured by: regret, puzzles, halving, phase guard, verdict."""
