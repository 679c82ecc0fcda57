"""Statistics of games: confidence intervals and Elo ratings."""
