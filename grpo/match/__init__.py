"""Players, matches, openings, the ladder, held-out regret and exercises."""
