"""Playing strength: players, matches, openings, the ladder, held-out regret, exercises, a selection's report."""
