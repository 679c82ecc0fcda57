"""Statistics of games: confidence intervals, SPRT, Elo ratings, sample sizes and rank correlations."""
