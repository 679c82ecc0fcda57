"""Dataset: games to a table of boards with exact quotas per split and game phase."""
