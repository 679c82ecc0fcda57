"""Playing strength: players, matches, the ladder of rated opponents, regret, statistics of games and the verdict."""
