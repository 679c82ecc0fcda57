"""Playing strength: players, matches, openings, the ladder of rated opponents, held-out regret, exercises, a selection's report."""
