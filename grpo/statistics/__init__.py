"""Statistics of games and regret."""
