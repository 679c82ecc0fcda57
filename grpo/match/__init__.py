"""Playing strength: players, matches, openings, the ladder of rated opponents, held-out regret, exercises, the report of a selection."""
